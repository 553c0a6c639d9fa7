"""Export of the fastest kernels (winners): as a Python module, a C library, tables, or a file of trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.core_library import core_library
from tsm2_tune.tuner.export.autotuner_formats import EXCHANGE, export_exchange
from tsm2_tune.tuner.export.cubins import Unverified, verified_cubins
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import of_single_products, verified_in_full, with_between
from tsm2_tune.tuner.export.launcher_build import launcher_binary
from tsm2_tune.tuner.export.library import LIBRARY_SUFFIXES, export_library, refuse_output
from tsm2_tune.tuner.export.measured_times import Known, known_of
from tsm2_tune.tuner.export.module import Cubins, module_text
from tsm2_tune.tuner.export.tables import csv_text, json_text, latex_text, markdown_text
from tsm2_tune.tuner.export.trial_lines import export_trials
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.written_files import refuse_database, refuse_unwritable, write, written

__all__ = [
    "EXCHANGE",
    "LIBRARY_SUFFIXES",
    "Unverified",
    "export",
    "export_exchange",
    "export_library",
    "export_text",
    "export_trials",
    "of_single_products",
    "refuse_database",
    "refuse_output",
    "refuse_unwritable",
    "verified_in_full",
    "with_between",
    "write",
    "written",
]

TABLES: dict[str, Callable[[Sequence[BestRow], str], str]] = {
    "csv": csv_text,
    "json": json_text,
    "markdown": markdown_text,
    "latex": latex_text,
}
FORMATS = ("module", *TABLES)


def export_text(
    rows: Sequence[BestRow],
    format_name: str,
    *,
    sources: Mapping[int, KernelSource],
    database: str,
    known: Known,
    cubins: Cubins | None = None,
    launcher: bytes | None = None,
) -> str:
    """Return the text of the winners `rows` (the fastest kernel of each shape) in one of FORMATS.

    `database` is the name of the database that the text mentions. Only the format "module" uses the other arguments:
    `sources` maps a trial's id to its kernel. Raise InputError if the format is unknown or `rows` is empty.
    """
    if format_name not in FORMATS:
        raise InputError(f"unknown format {format_name!r}: expected one of {', '.join(FORMATS)}")
    if not rows:
        raise InputError(f"nothing to export: {database} has no winner for this selection; tune first")
    if format_name == "module":
        return module_text(rows, sources, database, known, cubins, launcher)
    return TABLES[format_name](rows, database)


def export(
    store: Store,
    format_name: str,
    *,
    device: str | None = None,
    chosen: Callable[[Problem], bool] = lambda problem: True,
    cache: Cache | None = None,
    among: Callable[[Sequence[BestRow]], Sequence[BestRow]] = lambda rows: rows,
    binaries: bool = False,
    launcher: bool = False,
    unverified: Unverified = Unverified.REFUSED,
    tell: Callable[[str], None] = lambda sentence: None,
) -> tuple[str, Sequence[BestRow]]:
    """Return the text of the store's winners (the fastest kernel of each shape) in one of FORMATS, and the winners.

    Winners are filtered by `device`, by `chosen` (a function of the problem) and by L2 state `cache`. The rows
    that `among` returns are exported instead, for example fewer kernels that serve all shapes. With `binaries` a
    module contains cubins. `tell` is called with the reason for each missing cubin, and `unverified` is the policy
    for cubins that cannot be verified on this machine. With `launcher` a module contains the compiled launcher.

    Raise InputError if there is no winner, StoreError if a stored kernel differs from the kernel that this program
    generates, and ToolMissing if a compiler is missing that the core or the launcher needs.
    """
    rows: Sequence[BestRow] = [row for row in store.best(device=device, cache=cache) if chosen(row.problem)]
    compiled, cubins, winning = None, Cubins(), dict[int, TrialRecord]()
    if rows and format_name == "module":  # missing tools are told before what may take long
        core_library()
        compiled = launcher_binary() if launcher else None
    rows = among(rows)
    if format_name == "module":
        winning = store.winning(rows)
    sources = {trial_id: record.trial.source for trial_id, record in winning.items()}
    if binaries and winning:
        try:
            cubins, missing = verified_cubins(store, rows, sources, unverified, tell)
        except ToolMissing as error:
            missing = [str(error)]
        for why in missing:
            tell(f"no binary: {why.rstrip('.')}; the module compiles at the first call")
    known, database = known_of(store, winning), str(store.path)
    text = export_text(
        rows, format_name, sources=sources, database=database, known=known, cubins=cubins, launcher=compiled
    )
    return text, rows
