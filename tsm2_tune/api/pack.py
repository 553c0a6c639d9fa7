"""`pack`: tune a GPU model for all products, within a limit of time.

`check_pack`: time the kernels that a module exported from a pack would choose for a sample of products.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path

from tsm2_tune.api.devices import Devices, targets_of
from tsm2_tune.api.export import TRIALS, export
from tsm2_tune.api.import_trials import refuse_others
from tsm2_tune.api.parse import (
    MOST_HOURS,
    ElementTypes,
    Texts,
    canonical_dtype,
    check_callable,
    check_named,
    dtype_texts,
    file_name,
    positive,
    texts,
)
from tsm2_tune.api.tune import tune
from tsm2_tune.errors import InputError, StoreError, shown
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.pack_shapes import DTYPES, KINDS, Part, pack_problems, part_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain, truth
from tsm2_tune.pretuned import pretuned_named, without_gpu
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export.store_kernels import exported_kernels
from tsm2_tune.tuner.packs.check import CheckedPart, CheckedProduct, check_products, sample
from tsm2_tune.tuner.packs.choice import pretuned_kernels
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels
from tsm2_tune.tuner.packs.gains import Gains, gains_of
from tsm2_tune.tuner.results.snapshot import Snapshot
from tsm2_tune.tuner.results.storage.addresses import is_pretuned, shown_name
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs.events import Event, Noted
from tsm2_tune.tuner.runs.signals import interruptible
from tsm2_tune.tuner.written_files import refuse_database, refuse_unwritable

BUDGET_SECONDS = 4.0  # for the search of one problem
BATCH = 6  # problems of a run; then other kernels are timed at their shapes
MEMORY_SHARE = 1 / 16  # of the device's memory, at most, for the matrices of a problem
CHECK_SECONDS = 120.0  # after which a check begins no further product


@dataclass(frozen=True, slots=True)
@plain
class Packed:
    """The result of `pack`."""

    targets: tuple[Target, ...]  # the devices
    output: Path  # the written file of trials
    problems: int  # number of problems in the database that have a winner
    new_problems: int  # number of problems for which this call found a winner
    seconds: float  # of this call's tuning
    gains: dict[tuple[str, str], Gains]  # by kind and element type; those that the call asked for come first


def pack(
    output: str | PathLike[str], *, device: Devices = None, hours: float = 1.0, dtype: ElementTypes = DTYPES,
    only: Texts = tuple(KINDS), db: str | PathLike[str] | None = None, wait: bool = False,
    on_event: Callable[[Event], object] | None = None,
) -> Packed:  # fmt: skip
    """Tune a GPU for all products, and write the trials to a file. `tsm2-tune pack` does this.

    The problems are of all kinds in `only` and all types in `dtype`, column-major and row-major. The smallest take a
    few microseconds, and the largest need a sixteenth of the GPU's memory. They come in an order that covers all of
    these evenly, so the call may be stopped at any time. The same call continues with further problems.

    - `output`: the file of trials, such as "a100.jsonl". `import_trials` reads it, and `export` reads its database.
    - `device`: a CUDA ordinal, or several GPUs of one model, as for `tune`.
    - `hours`: the time after which no further problems are begun. Six are tuned together.
    - `dtype`, `only`: element types, and kinds of products: "R", "L", "T", "gram", "vector", "wide", and the batches
      "small", "stackR" and "stackT".
      Gram matrices have only the types of BLAS: f32, f64, c64 and c128.
    - `db`: the database; by default the name of `output`, ending in .db.
    - `wait`, `on_event`: as for `tune`.

    Raise InputError for invalid arguments and if a device is the CPU. Raise other errors like `tune` and `export`.
    """
    check_callable("on_event", on_event)
    path = file_name("output", output)
    if not path.endswith(".jsonl"):
        raise InputError(f"output = {shown(path)}: a pack is a file of trials; name one that ends in .jsonl")
    database = file_name("db", f"{path.removesuffix('.jsonl')}.db" if db is None else db)
    refuse_database(path, database)
    refuse_unwritable(path, is_ordinary=True)
    kinds, dtypes = _kinds(only), _dtypes(dtype)
    asked = {part: Gains() for part in _parts(kinds, dtypes)}
    end = time.monotonic() + 3600 * positive("hours", hours, MOST_HOURS, "hours")
    targets = _gpus(device)
    name = targets[0].identity.name
    if any(target.identity.name != name for target in targets):
        raise InputError("a pack is of one GPU model, and these devices are of several: name those of one model")
    problems = pack_problems(kinds, dtypes, int(MEMORY_SHARE * targets[0].limits.memory_bytes))
    start, tuned = time.monotonic(), 0
    for batch in batches(problems, _done(database, name), end):
        result = tune(batch, device=targets, db=database, budget=BUDGET_SECONDS, wait=wait, on_event=on_event)
        targets = result.targets
        tuned += len(batch) - len(result.unsolved) - len(result.unfinished)
    seconds = time.monotonic() - start
    export(database, format=TRIALS, output=path)
    with Store.open(database, create=False) as store:
        count, gains = len(store.best(device=name)), asked | _gains(store, name, on_event or (lambda event: None))
    return Packed(targets, Path(path), count, tuned, seconds, gains)


@dataclass(frozen=True, slots=True)
@plain
class PackCheck:
    """The result of `check_pack`."""

    target: Target  # the GPU on which the products were timed
    tuned_on: str  # the name of the GPU on which the checked kernels were tuned
    parts: dict[tuple[str, str], CheckedPart]  # by kind and element type
    seconds: float  # of the whole call

    @property
    def products(self) -> tuple[CheckedProduct, ...]:
        """The products of all parts."""
        return tuple(one for part in self.parts.values() for one in part.products)


def check_pack(
    pack: str | PathLike[str], *, device: Devices = None, dtype: ElementTypes = DTYPES, only: Texts = tuple(KINDS),
    wait: bool = False, on_event: Callable[[Noted | CheckedProduct], object] | None = None,
) -> PackCheck:  # fmt: skip
    """Check a pack on this machine's GPU for two minutes, as `tsm2-tune pack --check FILE` does.

    The GPU may be another model than the one on which the pack was tuned. The kernels that a module exported from the
    pack would choose on this GPU for a sample of products are verified, and timed interleaved with cuBLAS, with a
    dirty L2. The sample has products of all kinds in `only` and all types in `dtype`, as far as the pack has kernels
    for them: tuned shapes, and other shapes near to and far from the shapes at which the kernel was measured. A
    product counts as 1 x cuBLAS if the module would call cuBLAS. Nothing is stored.

    - `pack`: a file of trials, a database, or pretuned trials, such as "pretuned:h100".
    - `device`: a CUDA ordinal, as for `tune`.
    - `dtype`, `only`: as for `pack`.
    - `wait`: as for `tune`.
    - `on_event`: called in this thread with each product, and with notes.

    Raise InputError for invalid arguments, for a file that is no pack, and if the device is the CPU. Raise
    ToolMissing if cuBLAS is missing. Raise other errors like `import_trials` and `tune`.
    """
    start = time.monotonic()
    check_callable("on_event", on_event)
    tell: Callable[[Noted | CheckedProduct], object] = on_event or (lambda event: None)
    source, asked, waits = file_name("pack", pack), _parts(_kinds(only), _dtypes(dtype)), truth("wait", wait)
    refuse_others(source)
    target, *others = _gpus(device)
    if others:
        raise InputError("a pack is checked on one GPU: name one")

    def note(sentence: str) -> None:
        tell(Noted(sentence))

    with interruptible():
        kernels = _kernels(source, target.identity.name, note)
        tuned_on = kernels.kernels[0].winner.device
        most_bytes = int(MEMORY_SHARE * target.limits.memory_bytes)
        sampled = sample(kernels, target.identity.name, source, asked, most_bytes)
        if not sampled:
            raise InputError(
                f"{shown_name(source)} has no kernel of {tuned_on} for these kinds and types of products"
            )
        note(f"checking {shown_name(source)} on {target.identity.name}: about {CHECK_SECONDS:.0f} seconds")
        products = {part: list[CheckedProduct]() for part in sampled}
        waiting = note if waits else None
        for one in check_products(target, sampled.values(), end=start + CHECK_SECONDS, wait=waiting, tell=note):
            products[part_of(one.problem)].append(one)
            tell(one)
    parts = {part: CheckedPart(tuple(ones)) for part, ones in products.items()}
    return PackCheck(target, tuned_on, parts, time.monotonic() - start)


def _kernels(source: str, device: str, tell: Callable[[str], None]) -> ExportedKernels:
    """Return the pack's kernels for this GPU, else for its first GPU by name. Raise InputError without a GPU."""
    if is_pretuned(source):
        return pretuned_kernels(pretuned_named(source))
    with Snapshot.open(source, create=False) as store:
        for name in sorted(store.devices(), key=lambda name: (name != device, name)):
            kernels = exported_kernels(store, name, tell=tell)
            if not any(kernel.winner.on_host for kernel in kernels.kernels):
                return kernels
    raise InputError(f"{shown_name(source)} has no kernel for a GPU: name a file that `tsm2-tune pack` wrote")


def _gains(store: Store, device: str, tell: Callable[[Event], object]) -> dict[Part, Gains]:
    """Return the gains of a module with the device's kernels; {} with a note if no module can be exported."""
    try:
        return gains_of(exported_kernels(store, device))
    except (InputError, StoreError) as error:
        tell(Noted(f"no gains: {error}"))
        return {}


def batches(
    problems: Iterator[Problem], done: frozenset[Problem], end: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[Problem, ...]]:
    """Yield the problems that are not done, BATCH at a time, until the clock's time is `end`."""
    left = (problem for problem in problems if problem not in done)
    while clock() < end:
        yield tuple(islice(left, BATCH))


def _done(database: str, device: str) -> frozenset[Problem]:
    """Return the problems whose winners were timed interleaved with cuBLAS and verified in full."""
    with Store.open(database, create=True) as store:
        rows = store.best(device=device)
    return frozenset(row.problem for row in rows if row.verified_in_full and not row.stale and row.round > 0)


def _kinds(only: Texts) -> tuple[str, ...]:
    return _names("only", "kind in --only", only, tuple(KINDS))


def _dtypes(dtype: ElementTypes) -> tuple[str, ...]:
    return _names("dtype", "dtype", map(canonical_dtype, dtype_texts(dtype).split(",")), DTYPES)


def _parts(kinds: Sequence[str], dtypes: Sequence[str]) -> list[Part]:
    """Return the pairs of a kind and an element type. Raise InputError if there are none."""
    found = [(kind, each) for kind in kinds for each in dtypes if each in FMA_DTYPES or not KINDS[kind].is_gram]
    if not found:
        raise InputError(f"no kind and type is left: Gram matrices have only the types {', '.join(FMA_DTYPES)}")
    return found


def _gpus(device: Devices) -> tuple[Target, ...]:
    """Return the named GPUs. Raise InputError if one is the host."""
    targets = targets_of(device)
    if any(target.is_host for target in targets):
        raise InputError(f"`pack` needs a GPU: times of kernels on the CPU mean nothing; {without_gpu()}")
    return targets


def _names(argument: str, what: str, value: Texts, known: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct names in a text with commas, or in several texts. Raise InputError for an unknown name."""
    names = tuple(dict.fromkeys(name.strip() for name in texts(argument, value).split(",")))
    for name in names:
        check_named(what, name, known)
    return names
