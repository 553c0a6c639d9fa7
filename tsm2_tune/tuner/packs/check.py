"""Check of a pack on this machine's GPU: time a sample of its choices, interleaved with cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, takewhile, zip_longest
from random import Random
from typing import Literal

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.pack_shapes import Part, pack_problems, part_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export.comparison import chosen_candidate, compared
from tsm2_tune.tuner.packs.choice import Choice, NoChoice, choice_of
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels
from tsm2_tune.tuner.packs.gains import SLOWER, mean
from tsm2_tune.tuner.results.trial import Cache, Outcome

MOST_UNTUNED = 32  # products of a part whose shapes were not tuned
NEAR_DISTANCE = 1.5  # from the nearest shape at which the kernel was measured; see struct core_choice


class Place(StrEnum):
    """The distance of a product from the shapes at which the chosen kernel was measured, pairs included."""

    TUNED = "tuned"  # the product's shape was tuned
    NEAR = "near"  # within NEAR_DISTANCE
    FAR = "far"


@dataclass(frozen=True, slots=True)
class Sampled:
    """A product of a sample, with the choice of a module that has the pack's kernels."""

    place: Place
    choice: Choice


@dataclass(frozen=True, slots=True)
@plain
class CheckedProduct:
    """A product on which a pack was checked."""

    problem: Problem  # the product
    place: (
        str  # "tuned", if its shape was tuned; else "near" or "far" from the shapes at which the kernel was measured
    )
    config: str  # the kernel that a module with the pack chooses; "" if it chooses cuBLAS, then nothing is timed
    kernel_us: float | None = None  # the kernel's time; None if the kernel's result is wrong or it was not timed
    # The time of cuBLAS's gemm, or of its gemv or syrk if faster, in the same rounds; None if its result is wrong, or
    # if it or the kernel was not timed.
    vendor_us: float | None = None
    has_failed: bool = False  # whether the kernel's result is wrong, or it does not compile or run on this GPU
    trouble: str = ""  # why the kernel failed, or why it or cuBLAS was not timed

    @property
    def gain(self) -> float | None:
        """cuBLAS's time divided by the kernel's; 1 if the module chooses cuBLAS; None if a time is None."""
        if not self.config:
            return 1.0
        return self.vendor_us / self.kernel_us if self.vendor_us and self.kernel_us else None


@dataclass(frozen=True, slots=True)
@plain
class CheckedPart:
    """The checked products of one kind and element type."""

    products: tuple[CheckedProduct, ...]  # those that the check reached in time

    @property
    def gains(self) -> tuple[float, ...]:
        """The gains of the products that have one: both times, or the module chooses cuBLAS."""
        return tuple(one.gain for one in self.products if one.gain is not None)

    @property
    def trust(self) -> Literal["yes", "partly", "no"] | None:
        """Whether to use this part on the GPU.

        "no" if a kernel failed or the mean gain is below 1; else "partly" if a gain is below 1 / 1.03; else "yes".
        None if nothing was measured and no kernel failed.
        """
        gain = mean(self.gains)
        if any(one.has_failed for one in self.products) or (gain is not None and gain < 1):
            return "no"
        if gain is None:
            return None
        return "partly" if min(self.gains) < SLOWER else "yes"


def sample(
    kernels: ExportedKernels, device: str, source: str, parts: Iterable[Part], most_bytes: int
) -> dict[Part, list[Sampled]]:
    """Return tuned, near and far products of each part, in turn, for which a module with these kernels has a kernel.

    Tuned shapes come in random order, the others in that of `pack_problems`. `source` is the name of the pack.
    """
    tuned = dict[Part, list[Problem]]()
    for kernel in kernels.kernels:
        w = kernel.winner
        problem = Problem(w.m, w.n, w.k, w.dtype, w.op, w.batch)
        tuned.setdefault(part_of(problem), []).append(problem)
    found = {}
    for kind, dtype in parts:
        own = frozenset(tuned.get((kind, dtype), ()))
        new = (one for one in pack_problems([kind], [dtype], most_bytes) if one not in own)
        fitting = sorted(one for one in own if one.least_bytes <= most_bytes)
        Random(0).shuffle(fitting)
        by_place = {place: list[Sampled]() for place in Place}
        for problem in (*fitting, *islice(new, MOST_UNTUNED)):
            choice = choice_of(kernels, device, problem, source)
            if isinstance(choice, NoChoice):
                continue
            near_or_far = Place.FAR if choice.distance > NEAR_DISTANCE else Place.NEAR
            place = Place.TUNED if problem in own else near_or_far
            by_place[place].append(Sampled(place, choice))
        found[kind, dtype] = list(_in_turn(by_place.values()))
    return {part: products for part, products in found.items() if products}


def _in_turn(lists: Iterable[Sequence[Sampled]]) -> Iterator[Sampled]:
    """Yield the first elements of the lists, then the second ones, and so on."""
    return (one for turn in zip_longest(*lists) for one in turn if one is not None)


def check_products(
    target: Target,
    sampled: Iterable[Sequence[Sampled]],
    *,
    end: float,
    wait: Callable[[str], object] | None,
    tell: Callable[[str], object],
) -> Iterator[CheckedProduct]:
    """Verify the chosen kernels and time them interleaved with cuBLAS, one of each list in turn.

    Begin no product after the time `end` of time.monotonic. Yield also products that the module leaves to cuBLAS.
    Skip a product that does not fit in memory or whose kernel this version lacks, after a sentence to `tell`. Call
    `wait` while another run uses the device.
    """
    every = list(_in_turn(sampled))
    rest = iter(every)

    def wanted() -> Iterator[tuple[Choice, Candidate]]:
        for one in every:
            if not one.choice.is_vendor_chosen:
                try:
                    yield one.choice, chosen_candidate(target, one.choice)
                except InputError as error:
                    tell(f"not measured: {error}")

    for found in compared(target, wanted(), target.cache(Cache.DIRTY), wait=wait, end=end):
        if not found.has_vendor:
            raise ToolMissing(f"`pack --check` needs cuBLAS: {found.trouble}")
        for one in rest:
            if one.choice is found.choice:
                has_failed = found.outcome not in (Outcome.OK, Outcome.INTERRUPTED)
                yield CheckedProduct(
                    one.choice.asked,
                    one.place,
                    found.config.text,
                    None if found.measured is None else found.measured.median_us,
                    found.cublas_us,
                    has_failed,
                    found.trouble,
                )
                break
            if one.choice.is_vendor_chosen:
                yield CheckedProduct(one.choice.asked, one.place, "")
    for one in takewhile(lambda one: one.choice.is_vendor_chosen, rest):
        yield CheckedProduct(one.choice.asked, one.place, "")
