"""Return the kernels that an exported module would choose for given problems, by running the module's own code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.pretuned import PREFIX, Pretuned
from tsm2_tune.runtime.choice.choose import Layout
from tsm2_tune.runtime.choice.winners import Match, Vendor
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.packs.pack import Pack

SUFFIX = ".pack"
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """An exported module's choice for a problem: a kernel, and whether the module would call cuBLAS instead."""

    asked: Problem
    match: Match
    reason: str  # the text that the module's choice() returns
    is_vendors: bool  # whether the module would call cuBLAS
    vendor_us: float | None  # time of the faster of cuBLAS and cuBLASLt, measured or predicted
    measured_at: Shape  # the nearest shape (m, n, k) at which the kernel was measured
    distance: float  # distance to measured_at; 0 if the problem's own shape was measured

    @property
    def problem(self) -> Problem:
        """The problem that the kernel computes: `asked`, or its transpose."""
        if self.match.across is None:
            return self.asked
        m, n, k = self.match.across
        return Problem(m, n, k, self.asked.dtype_name, self.match.winner.op)

    @property
    def ratio(self) -> float | None:
        """cuBLAS's time divided by the kernel's time; None if either is unknown."""
        kernel_us = self.match.expected_us
        return None if kernel_us is None or self.vendor_us is None else self.vendor_us / kernel_us


def bundled_pack(text: Pretuned) -> Pack:
    """Return the pack of the included kernels for a GPU model: from the cache, or else built and cached."""
    key = hashlib.sha256(f"{__version__} {SUFFIX} {_code_digest()}".encode() + text.file.read_bytes()).hexdigest()
    found = cache.find(key, SUFFIX)
    if found is not None:
        return Pack.of_json(found[0].read_bytes())
    from tsm2_tune.tuner.export.store_pack import pack_of
    from tsm2_tune.tuner.results.store import Store

    with Store.open(PREFIX + text.name, create=False) as store:
        notes = list[str]()
        made = replace(pack_of(store, text.device_name, tell=notes.append), notes=tuple(notes))
    with workplace(cache.working_parent()) as work:
        output = work.folder / "made.pack"
        output.write_bytes(made.json)
        cache.keep(output, key, SUFFIX, 0)
    return made


def _code_digest() -> str:
    """Return a SHA-256 digest of this package's Python files, which determine the content of a pack."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def choices(
    source: Pretuned | str,
    problems: Sequence[Problem],
    device_of: Callable[[Sequence[str]], str],
    tell: Callable[[str], None],
) -> tuple[str, list[Choice]]:
    """Return the device's name, and for each problem the choice of a module exported for that device.

    The kernels come from `source`: trials included in the package, or a database. `device_of` returns one of the
    database's device names. `tell` receives notes. Raise InputError if there is no kernel for a problem.
    """
    if isinstance(source, Pretuned):
        device, pack, place = source.device_name, bundled_pack(source), PREFIX + source.name
        for note in pack.notes:
            tell(note)
    else:
        from tsm2_tune.tuner.export.store_pack import pack_of
        from tsm2_tune.tuner.results.store import Store

        with Store.open(source, create=False) as store:
            device, place = device_of(store.devices()), str(store.path)
            pack = pack_of(store, device, problems, tell)
    is_host = all(one.winner.on_host for one in pack.kernels)
    return device, [_choice(pack, None if is_host else device, one, place) for one in problems]


def _choice(pack: Pack, device: str | None, asked: Problem, place: str) -> Choice:
    layout = Layout.of_op(asked.dtype_name, (asked.m, asked.n, asked.k), asked.op)
    try:
        match, beside = (one.match(layout, device) for one in (pack.chooser, pack.chooser_beside))
    except (LookupError, ValueError) as error:
        raise InputError(f"{place} has no kernel for {asked.text}: {error.args[0]}") from None
    reason = str(Vendor(match.why_it_loses) if match.loses else match)
    m, n, k = match.measured_at
    measured_at = (m, n, k) if match.across is None else (n, m, k)
    return Choice(asked, match, reason, match.loses, beside.vendor_us, measured_at, match.distance)
