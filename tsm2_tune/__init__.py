"""Code-generating autotuner for tall-and-skinny matrix multiplication on GPUs.

    import tsm2_tune

    result = tsm2_tune.tune("20480x16x20480", dtype="f64", db="results.db", budget=10, on_event=print)
    for winner in result.winners:
        print(winner.problem, winner.config, winner.median_us)
    tsm2_tune.export("results.db", format="module", output="best_kernels.py")

`__all__` lists the public names, and docs/api.md describes them. Each name is imported on first access, so that the
package is imported quickly. Importing it needs no GPU.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers assume True; importing it from typing would take longer than this module

if TYPE_CHECKING:
    from tsm2_tune.api.best import best
    from tsm2_tune.api.confirm import confirm
    from tsm2_tune.api.export import Exported, export
    from tsm2_tune.api.import_trials import import_trials
    from tsm2_tune.api.pack import PackCheck, Packed, check_pack, pack
    from tsm2_tune.api.plan import plan_space, problems
    from tsm2_tune.api.report import report
    from tsm2_tune.api.tune import TuningResult, tune
    from tsm2_tune.errors import DeviceError, InputError, StoreError, ToolMissing, TuneError, WorkerError
    from tsm2_tune.generator.config import KernelConfig
    from tsm2_tune.generator.device.limits import DeviceLimits
    from tsm2_tune.generator.problem import Problem
    from tsm2_tune.generator.space.candidate import Candidate
    from tsm2_tune.generator.space.rules import Rule
    from tsm2_tune.generator.space.space import SearchSpace
    from tsm2_tune.tuner.device.target import Target
    from tsm2_tune.tuner.export.kernel_sets.pair_timing import Narrowed
    from tsm2_tune.tuner.export.kernel_sets.smallest_set import ChoiceStarted, ExportEvent, KernelsChosen
    from tsm2_tune.tuner.packs.check import CheckedPart, CheckedProduct
    from tsm2_tune.tuner.results.best_view import BestRow
    from tsm2_tune.tuner.results.merge.importer import Imported
    from tsm2_tune.tuner.results.trial import Cache, DeviceIdentity, Final, Measurement, Outcome, Trial, Verdict
    from tsm2_tune.tuner.runs.events import (
        Confirmed,
        Event,
        FinalFailure,
        FinalStored,
        FleetStarted,
        Noted,
        OfRun,
        PairMeasured,
        PairsStarted,
        ProblemEnded,
        ProblemLeft,
        ProblemStarted,
        RunEnded,
        RunStarted,
        TrialInterrupted,
        TrialStored,
        VendorLeftOut,
        WinnerVerified,
    )

__version__ = "0.2.0"
_HOMES = {
    "api.best": ("best",),
    "api.confirm": ("confirm",),
    "api.import_trials": ("import_trials",),
    "api.pack": ("PackCheck", "Packed", "check_pack", "pack"),
    "api.plan": ("plan_space", "problems"),
    "api.report": ("report",),
    "api.export": ("Exported", "export"),
    "api.tune": ("TuningResult", "tune"),
    "errors": ("DeviceError", "InputError", "StoreError", "ToolMissing", "TuneError", "WorkerError"),
    "generator.config": ("KernelConfig",),
    "generator.device.limits": ("DeviceLimits",),
    "generator.problem": ("Problem",),
    "generator.space.candidate": ("Candidate",),
    "generator.space.rules": ("Rule",),
    "generator.space.space": ("SearchSpace",),
    "tuner.runs.events": (
        "Confirmed", "PairMeasured", "Event", "FinalFailure", "FinalStored", "FleetStarted", "Noted", "OfRun",
        "PairsStarted", "ProblemEnded", "ProblemLeft", "ProblemStarted", "RunEnded", "RunStarted", "TrialInterrupted",
        "TrialStored", "VendorLeftOut", "WinnerVerified",
    ),
    "tuner.export.kernel_sets.smallest_set": ("ChoiceStarted", "ExportEvent", "KernelsChosen"),
    "tuner.export.kernel_sets.pair_timing": ("Narrowed",),
    "tuner.packs.check": ("CheckedPart", "CheckedProduct"),
    "tuner.results.merge.importer": ("Imported",),
    "tuner.results.best_view": ("BestRow",),
    "tuner.device.target": ("Target",),
    "tuner.results.trial": ("Cache", "DeviceIdentity", "Final", "Measurement", "Outcome", "Trial", "Verdict"),
}  # fmt: skip
_HOME = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}

__all__ = [
    "BestRow",
    "Cache",
    "Candidate",
    "CheckedPart",
    "CheckedProduct",
    "ChoiceStarted",
    "Confirmed",
    "DeviceError",
    "DeviceIdentity",
    "DeviceLimits",
    "Event",
    "ExportEvent",
    "Exported",
    "Final",
    "FinalFailure",
    "FinalStored",
    "FleetStarted",
    "Imported",
    "InputError",
    "KernelConfig",
    "KernelsChosen",
    "Measurement",
    "Narrowed",
    "Noted",
    "OfRun",
    "Outcome",
    "PackCheck",
    "Packed",
    "PairMeasured",
    "PairsStarted",
    "Problem",
    "ProblemEnded",
    "ProblemLeft",
    "ProblemStarted",
    "Rule",
    "RunEnded",
    "RunStarted",
    "SearchSpace",
    "StoreError",
    "Target",
    "ToolMissing",
    "Trial",
    "TrialInterrupted",
    "TrialStored",
    "TuneError",
    "TuningResult",
    "VendorLeftOut",
    "Verdict",
    "WinnerVerified",
    "WorkerError",
    "__version__",
    "best",
    "check_pack",
    "confirm",
    "export",
    "import_trials",
    "pack",
    "plan_space",
    "problems",
    "report",
    "tune",
]

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name: str) -> object:
        """Import a public name from the module that defines it, on first access, and store it in this module."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_HOME[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
