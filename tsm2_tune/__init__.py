"""Code-generating autotuner for tall-and-skinny matrix multiplication on GPUs.

    import tsm2_tune

    result = tsm2_tune.tune("20480x16x20480", dtype="f64", db="results.db", budget=10, on_event=print)
    for winner in result.winners:
        print(winner.problem, winner.config, winner.median_us)
    tsm2_tune.export("results.db", format="module", output="best_kernels.py")

What is public stands in `__all__`, and is described in docs/api.md. Each name is imported when it is first used, so
that importing the package takes no time. It needs no GPU.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true; typing takes longer to import than all of this

if TYPE_CHECKING:
    from tsm2_tune.api.confirming import confirm
    from tsm2_tune.api.importing import import_trials
    from tsm2_tune.api.planning import plan_space, problems
    from tsm2_tune.api.report import report
    from tsm2_tune.api.results import Exported, best, export
    from tsm2_tune.api.tuning import TuningResult, tune
    from tsm2_tune.errors import DeviceError, InputError, StoreError, ToolMissing, TuneError, WorkerError
    from tsm2_tune.generator.candidate import Candidate
    from tsm2_tune.generator.config import KernelConfig
    from tsm2_tune.generator.limits import DeviceLimits
    from tsm2_tune.generator.problem import Problem
    from tsm2_tune.generator.rules import Rule
    from tsm2_tune.generator.space import SearchSpace
    from tsm2_tune.tuner.events import (
        Confirmed,
        Crossed,
        Event,
        FinalFailure,
        FinalStored,
        FleetStarted,
        Noted,
        OfRun,
        PairsStarted,
        ProblemEnded,
        ProblemStarted,
        RunEnded,
        RunStarted,
        TrialInterrupted,
        TrialStored,
        VendorLeftOut,
        WinnerVerified,
    )
    from tsm2_tune.tuner.export.fewest import ChoiceStarted, ExportEvent, KernelsChosen
    from tsm2_tune.tuner.export.measuring import Narrowed
    from tsm2_tune.tuner.importing.merging import Imported
    from tsm2_tune.tuner.stored import BestRow
    from tsm2_tune.tuner.target import Target
    from tsm2_tune.tuner.trial import Cache, DeviceIdentity, Final, Measurement, Outcome, Trial, Verdict

    __version__: str

_HOMES = {
    "api.confirming": ("confirm",),
    "api.importing": ("import_trials",),
    "api.planning": ("plan_space", "problems"),
    "api.report": ("report",),
    "api.results": ("Exported", "best", "export"),
    "api.tuning": ("TuningResult", "tune"),
    "errors": ("DeviceError", "InputError", "StoreError", "ToolMissing", "TuneError", "WorkerError"),
    "generator.config": ("KernelConfig",),
    "generator.limits": ("DeviceLimits",),
    "generator.problem": ("Problem",),
    "generator.candidate": ("Candidate",),
    "generator.rules": ("Rule",),
    "generator.space": ("SearchSpace",),
    "tuner.events": (
        "Confirmed", "Crossed", "Event", "FinalFailure", "FinalStored", "FleetStarted", "Noted", "OfRun",
        "PairsStarted", "ProblemEnded", "ProblemStarted", "RunEnded", "RunStarted", "TrialInterrupted", "TrialStored",
        "VendorLeftOut", "WinnerVerified",
    ),
    "tuner.export.fewest": ("ChoiceStarted", "ExportEvent", "KernelsChosen"),
    "tuner.export.measuring": ("Narrowed",),
    "tuner.importing.merging": ("Imported",),
    "tuner.stored": ("BestRow",),
    "tuner.target": ("Target",),
    "tuner.trial": ("Cache", "DeviceIdentity", "Final", "Measurement", "Outcome", "Trial", "Verdict"),
}  # fmt: skip
_HOME = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}

__all__ = [
    "BestRow",
    "Cache",
    "Candidate",
    "ChoiceStarted",
    "Confirmed",
    "Crossed",
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
    "PairsStarted",
    "Problem",
    "ProblemEnded",
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
    "confirm",
    "export",
    "import_trials",
    "plan_space",
    "problems",
    "report",
    "tune",
]

if not TYPE_CHECKING:  # a type checker is to know that there is nothing else

    def __getattr__(name: str) -> object:
        """Return the public name, from where it is defined; it stays here then."""
        if name == "__version__":
            found = _version()
        elif name in _HOME:
            found = getattr(import_module(_HOME[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tsm2-tune")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+uninstalled"
