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
    from tsm2_tune.api.best import best as best
    from tsm2_tune.api.confirm import confirm as confirm
    from tsm2_tune.api.export import Exported as Exported
    from tsm2_tune.api.export import export as export
    from tsm2_tune.api.import_trials import import_trials as import_trials
    from tsm2_tune.api.pack import PackCheck as PackCheck
    from tsm2_tune.api.pack import Packed as Packed
    from tsm2_tune.api.pack import check_pack as check_pack
    from tsm2_tune.api.pack import pack as pack
    from tsm2_tune.api.plan import plan_space as plan_space
    from tsm2_tune.api.plan import problems as problems
    from tsm2_tune.api.report import report as report
    from tsm2_tune.api.tune import tune as tune
    from tsm2_tune.errors import DeviceError as DeviceError
    from tsm2_tune.errors import InputError as InputError
    from tsm2_tune.errors import StoreError as StoreError
    from tsm2_tune.errors import ToolMissing as ToolMissing
    from tsm2_tune.errors import TuneError as TuneError
    from tsm2_tune.errors import WorkerError as WorkerError
    from tsm2_tune.generator.config import KernelConfig as KernelConfig
    from tsm2_tune.generator.device.limits import DeviceLimits as DeviceLimits
    from tsm2_tune.generator.problem import Problem as Problem
    from tsm2_tune.generator.space.candidate import Candidate as Candidate
    from tsm2_tune.generator.space.rules import Rule as Rule
    from tsm2_tune.generator.space.space import SearchSpace as SearchSpace
    from tsm2_tune.tuner.device.target import Target as Target
    from tsm2_tune.tuner.export.kernel_sets.pair_timing import Narrowed as Narrowed
    from tsm2_tune.tuner.export.kernel_sets.smallest_set import ChoiceStarted as ChoiceStarted
    from tsm2_tune.tuner.export.kernel_sets.smallest_set import ExportEvent as ExportEvent
    from tsm2_tune.tuner.export.kernel_sets.smallest_set import KernelsChosen as KernelsChosen
    from tsm2_tune.tuner.packs.check import CheckedPart as CheckedPart
    from tsm2_tune.tuner.packs.check import CheckedProduct as CheckedProduct
    from tsm2_tune.tuner.results.best_view import BestRow as BestRow
    from tsm2_tune.tuner.results.merge.importer import Imported as Imported
    from tsm2_tune.tuner.results.trial import Cache as Cache
    from tsm2_tune.tuner.results.trial import DeviceIdentity as DeviceIdentity
    from tsm2_tune.tuner.results.trial import Final as Final
    from tsm2_tune.tuner.results.trial import Measurement as Measurement
    from tsm2_tune.tuner.results.trial import Outcome as Outcome
    from tsm2_tune.tuner.results.trial import Trial as Trial
    from tsm2_tune.tuner.results.trial import Verdict as Verdict
    from tsm2_tune.tuner.runs.events import Confirmed as Confirmed
    from tsm2_tune.tuner.runs.events import Event as Event
    from tsm2_tune.tuner.runs.events import FinalFailure as FinalFailure
    from tsm2_tune.tuner.runs.events import FinalStored as FinalStored
    from tsm2_tune.tuner.runs.events import FleetStarted as FleetStarted
    from tsm2_tune.tuner.runs.events import Noted as Noted
    from tsm2_tune.tuner.runs.events import OfRun as OfRun
    from tsm2_tune.tuner.runs.events import PairMeasured as PairMeasured
    from tsm2_tune.tuner.runs.events import PairsStarted as PairsStarted
    from tsm2_tune.tuner.runs.events import ProblemEnded as ProblemEnded
    from tsm2_tune.tuner.runs.events import ProblemLeft as ProblemLeft
    from tsm2_tune.tuner.runs.events import ProblemStarted as ProblemStarted
    from tsm2_tune.tuner.runs.events import RunEnded as RunEnded
    from tsm2_tune.tuner.runs.events import RunStarted as RunStarted
    from tsm2_tune.tuner.runs.events import TrialInterrupted as TrialInterrupted
    from tsm2_tune.tuner.runs.events import TrialStored as TrialStored
    from tsm2_tune.tuner.runs.events import VendorLeftOut as VendorLeftOut
    from tsm2_tune.tuner.runs.events import WinnerVerified as WinnerVerified
    from tsm2_tune.tuner.runs.run import TuningResult as TuningResult

__version__ = "0.2.0"
_HOMES = {
    "api.best": ("best",),
    "api.confirm": ("confirm",),
    "api.import_trials": ("import_trials",),
    "api.pack": ("PackCheck", "Packed", "check_pack", "pack"),
    "api.plan": ("plan_space", "problems"),
    "api.report": ("report",),
    "api.export": ("Exported", "export"),
    "api.tune": ("tune",),
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
    "tuner.runs.run": ("TuningResult",),
    "tuner.export.kernel_sets.smallest_set": ("ChoiceStarted", "ExportEvent", "KernelsChosen"),
    "tuner.export.kernel_sets.pair_timing": ("Narrowed",),
    "tuner.packs.check": ("CheckedPart", "CheckedProduct"),
    "tuner.results.merge.importer": ("Imported",),
    "tuner.results.best_view": ("BestRow",),
    "tuner.device.target": ("Target",),
    "tuner.results.trial": ("Cache", "DeviceIdentity", "Final", "Measurement", "Outcome", "Trial", "Verdict"),
}  # fmt: skip
_HOME = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])

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
