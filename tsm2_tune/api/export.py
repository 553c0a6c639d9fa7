"""`export`: write winners, or all trials of one problem, to a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from tsm2_tune.api.parse import (
    DEFAULT_DATABASE,
    EXCHANGE,
    FORMATS,
    MOST_WITHIN,
    ElementTypes,
    Texts,
    check_callable,
    check_family,
    check_named,
    checked_share,
    file_name,
)
from tsm2_tune.api.products import Products
from tsm2_tune.api.selection import Selection, selected
from tsm2_tune.errors import InputError
from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.compile.core_library import core_library
from tsm2_tune.tuner.export.autotuner_formats import export_exchange
from tsm2_tune.tuner.export.cubins import Unverified
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import exportable, of_single_products
from tsm2_tune.tuner.export.kernel_sets.smallest_set import ExportEvent, Fewest
from tsm2_tune.tuner.export.library import exported_library, refuse_output, usable, write_library
from tsm2_tune.tuner.export.module import exported_module, launcher_binary
from tsm2_tune.tuner.export.tables import TABLES
from tsm2_tune.tuner.export.trial_lines import trials_text
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.snapshot import Snapshot
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import count_text
from tsm2_tune.tuner.runs.events import Noted
from tsm2_tune.tuner.runs.signals import Stopped, interruptible
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.written_files import refuse_database, refuse_unwritable, write

TRIALS = "trials"  # a format that `import_trials` reads
PACKS = ("module", "library")  # formats that choose a kernel for any shape


@dataclass(frozen=True, slots=True)
@plain
class Exported:
    """The result of an export."""

    files: tuple[Path, ...]  # the written files
    text: str | None  # the content of the file; None for a C library
    winners: tuple[BestRow, ...] = ()  # with kernels for shapes between; empty for all trials of one problem

    @property
    def counts(self) -> str:
        """The numbers of exported kernels and of their problems, such as "3 kernels for 4 problems"; "" without
        winners.
        """
        numbers = {
            "kernel": len({row.source_digest for row in self.winners}),
            "problem": len({(row.device, row.problem) for row in self.winners}),
        }
        return " for ".join(count_text(n, what) for what, n in numbers.items() if n)


def export(
    db: str | PathLike[str] = DEFAULT_DATABASE, *, format: str, output: str | PathLike[str] | None = None,
    device: int | str | None = None, products: Products | None = None, dtype: ElementTypes | None = None,
    op: Texts | None = None, layout: str | None = None, cache: str | None = None, family: str | None = None,
    binaries: bool = True, launcher: bool = False, between: bool | None = None,
    within: float | str | None = None, measure: bool = True, wait: bool = False, allow_unverified: bool = False,
    on_event: Callable[[ExportEvent], object] | None = None,
) -> Exported:  # fmt: skip
    """Write winners as a Python module, a C library, a table or a list of trials. `tsm2-tune export` does this.

    The formats "t4" and "kernel-tuner-cache" contain all trials of one problem on one device, for other autotuners.

    - `db`, `device`, `products`, `dtype`, `op`, `layout`, `cache`: the winners to export, as for `best`.
    - `family`: only trials of this kernel family, with the format "t4" or "kernel-tuner-cache".
    - `format`: "module", "library", "csv", "json", "markdown", "latex", "trials" (which `import_trials` reads), "t4"
      or "kernel-tuner-cache".
    - `output`: the name of the file, ending in .so for a library. If it is None, write no file; the result contains
      the text.
    - `binaries`: whether a module contains compiled kernels, if nvcc is installed.
    - `launcher`: whether a module contains a compiled launcher, which makes calls faster.
    - `between`: whether a module or library also contains kernels for shapes between the tuned ones. The default is
      False with `within`, otherwise True.
    - `within`: a share from 0.0 to 1.0, or a text such as "3%". Export as few kernels as possible, so that no shape
      takes longer than its best time by more than this share.
    - `measure`: with `within`, whether to measure missing times if the device is in this machine.
    - `wait`: with `within`, whether to wait until another run on the device ends.
    - `allow_unverified`: whether a module or library may contain binaries that differ from the verified ones, for
      example after an update of the compiler. If False, such binaries are verified if the device is in this machine;
      otherwise the export is refused.
    - `on_event`: called with each event, such as a note that a kernel is omitted.

    Raise InputError for invalid arguments, if there are no winners, and for a file that cannot be written. Raise
    StoreError for a database that cannot be used, and for a stored kernel whose code differs in this version. Raise
    ToolMissing if a compiler is missing. With `within`, also raise the errors of `tune`.
    """
    check_named("format", format, FORMATS)
    if family is not None:
        check_family(family)
    check_callable("on_event", on_event)
    name, share = file_name("db", db), checked_share("within", within, MOST_WITHIN)
    wanted = _Export(
        format,
        family,
        binaries,
        launcher,
        between,
        share,
        measure,
        wait,
        allow_unverified,
        on_event or (lambda event: None),
    )
    if (wrong := wanted.contradiction()) is not None:
        raise InputError(wrong)
    selection = selected(device, products, dtype, op, cache, layout)
    path = None if output is None else file_name("output", output)
    if path is None and format == "library":
        raise InputError("a library is binary: name a file that ends in .so, such as libtsm2.so")
    if path is not None:
        refuse_database(path, name)  # before the slow reading of winners
        if format == "library":
            refuse_output(path, name)
        else:
            refuse_unwritable(path)
    kind = Snapshot if share is None else Store  # kernels that are measured for `within` change the store
    with nullcontext() if share is None else interruptible(), kind.open(name, create=False) as store:
        writes = store.database.writes
        try:
            return wanted.exported(store, selection, path)
        except InputError:
            _refuse_nothing(store, selection)
            raise
        except Stopped as stopped:
            stopped.stored_in = name if store.database.writes > writes else ""
            raise


@dataclass(frozen=True, slots=True)
class _Export:
    """One export: its format, and the options that select kernels."""

    format: str
    family: str | None
    binaries: bool
    launcher: bool
    between: bool | None
    within: float | None
    measure: bool
    wait: bool
    allow_unverified: bool
    tell: Callable[[ExportEvent], object]

    def contradiction(self) -> str | None:
        """Return a sentence that names options which exclude one another; None if there are none."""
        if self.family is not None and self.format not in EXCHANGE:
            formats = " and ".join(EXCHANGE)
            return f"--family is only for --format {formats}: other formats have the winners of all families"
        if self.format == "library" and not self.binaries:
            return "--no-binaries is only for a module: a library consists of binaries"
        if self.allow_unverified and (self.format not in PACKS or not self.binaries):
            return "--allow-unverified is only for binaries in a module or a library: leave it out"
        if self.within is None and (not self.measure or self.wait):
            return "--no-measure and --wait are only for --within: without it, nothing is measured"
        if self.within is not None and self.format in (TRIALS, *EXCHANGE):
            return f"--within chooses kernels, and --format {self.format} has all trials: leave one out"
        if self.launcher and self.format != "module":
            return f"--launcher is only for a module: leave it out with --format {self.format}"
        if self.between and self.within is not None:
            return "--between adds kernels, but --within chooses the fewest: use only one of them"
        if self.between and self.format not in PACKS:
            return f"--between is only for a module or a library: leave it out with --format {self.format}"
        return None

    def exported(self, store: Store, selection: Selection, path: str | None) -> Exported:
        """Export the selected winners, and write them to `path` unless it is None."""
        device, cache = selection.device_in(store), selection.cache
        unverified = Unverified.ALLOWED if self.allow_unverified else Unverified.REFUSED
        if self.format in EXCHANGE:
            chosen = selection.__contains__
            text = export_exchange(store, self.format, device=device, chosen=chosen, cache=cache, family=self.family)
            return _exported(text, (), path)
        winners: Sequence[BestRow]
        winners = [row for row in store.best(device=device, cache=cache) if row.problem in selection]
        if self.format == "library" and path is not None:
            winners = self._chosen(store, usable(store, winners, self._note))
            shared, winners = exported_library(store, winners, Path(path).name, unverified, self._note)
            return Exported(write_library(shared, path), None, tuple(winners))
        if not winners:
            raise InputError(f"nothing to export: {store.path} has no winner for this selection; tune first")
        if self.format == TRIALS:
            return _exported(trials_text(store, winners), winners, path)
        if self.format in TABLES:
            winners = self._chosen(store, winners)
            return _exported(TABLES[self.format](winners, str(store.path)), winners, path)
        core_library()  # missing tools are told before what may take long
        launcher = launcher_binary() if self.launcher else None
        winners = self._chosen(store, winners)
        text = exported_module(
            store, winners, binaries=self.binaries, launcher=launcher, unverified=unverified, tell=self._note
        )
        return _exported(text, winners, path)

    def _chosen(self, store: Store, winners: Sequence[BestRow]) -> Sequence[BestRow]:
        """Return the rows to export, given the winners: fewer kernels, or also kernels for shapes between."""
        if self.within is not None:
            options = Options(vendor=True, budget_seconds=None)
            fewest = Fewest(store, self.within, options, self.measure, self._note if self.wait else None, self.tell)
            return fewest(of_single_products(winners, self._note))
        if self.format not in PACKS:
            return winners
        return exportable(store, winners, self._note, between=self.between is not False)

    def _note(self, sentence: str) -> None:
        self.tell(Noted(sentence))


def _exported(text: str, winners: Sequence[BestRow], path: str | None) -> Exported:
    """Return the result, after writing the text to `path` unless it is None."""
    if path is not None:
        write(text, path)
    return Exported(() if path is None else (Path(path),), text, tuple(winners))


def _refuse_nothing(store: Store, selection: Selection) -> None:
    """Raise InputError if the store has winners but the selection contains none of them."""
    device = selection.device_in(store)
    found, every = store.best(device=device, cache=selection.cache), store.best(device=device)
    if not any(row.problem in selection for row in found):
        selection.refuse_all("winner", [(row.problem, row.cache) for row in every], store.path)
