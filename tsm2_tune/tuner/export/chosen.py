"""The kernels that an exported module would choose for problems, by the module itself: it is made and asked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.transposed import transposed
from tsm2_tune.runtime.elements import CONJUGATED, SAME
from tsm2_tune.tuner import export as exports
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow

NAME = "tsm2_tune_pack"  # of the module


@dataclass(frozen=True, slots=True)
class Choice:
    """The exported module's choice for a problem."""

    asked: Problem
    match: Any  # the module's Match
    reason: str  # in the words of its choice()
    is_vendors: bool  # whether the module leaves it to the vendor

    @property
    def problem(self) -> Problem:
        """The problem that the kernel computes: the one asked for, or its transpose."""
        if self.match.across is None:
            return self.asked
        m, n, k = self.match.across
        return Problem(m, n, k, self.asked.dtype_name, self.match.winner.op)

    @property
    def ratio(self) -> float | None:
        """How many times as long as the kernel the vendor is expected to take; None if one of both is not known."""
        match = self.match
        return None if None in (match.expected_us, match.vendor_us) else match.vendor_us / match.expected_us


def choices(store: Store, device: str, problems: Sequence[Problem], tell: Callable[[str], None]) -> list[Choice]:
    """Return what a module of the store's kernels for the device chooses for each problem.

    Raise InputError if it has no kernel for one.
    """
    alike = set[tuple[str, str]]()
    for one in problems:
        alike |= {(each.dtype_name, each.op) for each in (one, one if SAME in one.op else transposed(one))}

    def among(rows: Sequence[BestRow]) -> Sequence[BestRow]:
        verified = exports.verified_in_full(rows, tell) if rows else []
        return exports.with_between(store, tell, verified)

    if not any((row.problem.dtype_name, row.problem.op) in alike for row in store.best(device=device)):
        raise InputError(f"{store.path} has no kernel for {problems[0].text}: tsm2-tune best shows what it has")

    def is_alike(one: Problem) -> bool:
        return (one.dtype_name, one.op) in alike

    text = exports.export(store, "module", device=device, chosen=is_alike, among=among)
    module = ModuleType(NAME)
    exec(compile(text, NAME, "exec"), module.__dict__)  # this program's own text
    is_host = all(one.on_host for one in module.WINNERS)
    return [_choice(module, None if is_host else device, one, str(store.path)) for one in problems]


def _choice(module: ModuleType, device: str | None, asked: Problem, place: str) -> Choice:
    try:
        match = _match(module, device, asked)
    except (LookupError, ValueError) as error:
        raise InputError(f"{place} has no kernel for {asked.text}: {error.args[0]}") from None
    is_vendors = bool(match.loses)
    reason = str(module.Vendor(match.why_it_loses) if is_vendors else match)
    return Choice(asked, match, reason, is_vendors)


def _match(module: ModuleType, device: str | None, asked: Problem) -> Any:
    """Return the module's match for contiguous matrices in the orders of the op."""
    letters = asked.op if len(asked.op) == 3 else f"{asked.op}n"
    if letters[1] == SAME:
        return module.match(asked.m, asked.n, asked.k, asked.dtype_name, device, asked.op)
    plain = [CONJUGATED.get(letter, letter) for letter in letters]
    extents = ((asked.m, asked.k), (asked.k, asked.n), (asked.m, asked.n))
    lds = tuple((of[0] if order == "n" else of[1],) for of, order in zip(extents, plain, strict=True))
    conjugates = (letters[0] in CONJUGATED, letters[1] in CONJUGATED)
    orders = tuple((order,) for order in plain)
    return module._chosen(asked.dtype_name, (asked.m, asked.n, asked.k), orders, lds, conjugates, False, device)
