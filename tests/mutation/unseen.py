"""Why a host cannot see what a GPU may."""

from __future__ import annotations

import re

from tests.mutation.baseline import LONG
from tests.mutation.edits import constants
from tests.mutation.sample import Mutant
from tests.mutation.subjects import Subject, text_of
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import long_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.full import ON_GPU, Extent


def is_refused(mutant: Mutant) -> bool:
    """Whether a variable that was made static begins with what is known when the kernel runs: nvcc refuses it."""
    if mutant.edit.operator != "state":
        return False
    value = re.match(r"static (?:const )?\w+ \*?\w+ = (.*)", mutant.after)
    known = constants(text_of(mutant.subject))
    return value is not None and not set(re.findall(r"[A-Za-z_]\w*", value[1])) <= known


def _is_too_long(mutant: Mutant) -> bool:
    """Whether an extent was cut to so many bits that only a GPU is given a longer one."""
    cut = re.search(r"\(([mnk]) & (0x\w+)\)", mutant.edit.replacement)
    if cut is None:
        return False
    on_host, on_gpu = (longest_of(mutant.subject, cut[1], extent) for extent in (LONG, ON_GPU))
    return on_host <= int(cut[2], 16) < on_gpu


def _are_too_many(mutant: Mutant) -> bool:
    """Whether a number of tiles got 16 bits at the most, and only a GPU is given more tiles."""
    if mutant.edit.operator != "narrower" or re.search(r"tiles\w* = ", mutant.before) is None:
        return False
    launch = mutant.subject.source.launch
    most = [
        max((launch.tiles(one.m, one.n) for one in _long_problems(mutant.subject, extent)), default=0)
        for extent in (LONG, ON_GPU)
    ]
    return most[0] < 2**15 and most[1] >= 2**16


def _is_cut(mutant: Mutant) -> bool:
    """Whether a place or a number was cut to 16 bits, and only a GPU is given extents from which it has more."""
    bits = {"short": 15, "mutant::half_word": 16}.get(mutant.edit.replacement, 0)
    names = _extents_of_cut(mutant)
    return bool(bits and names) and all(
        longest_of(mutant.subject, name, LONG) < 2**bits < longest_of(mutant.subject, name, ON_GPU) for name in names
    )


def _extents_of_cut(mutant: Mutant) -> set[str]:
    """The extents that say how large a variable is whose type was changed, as far as its line tells."""
    source, edit = text_of(mutant.subject).source, mutant.edit
    if source[edit.start : edit.end] != "index_t":
        return set()
    if parameter := re.match(r" ([mnkl])[,)]", source[edit.end :]):
        return {parameter[1].replace("l", "k")}
    is_computed = " = " in mutant.before and re.search(r"\bld[abc]\b", mutant.before) is None
    return set(re.findall(r"\b[mnk]\b", mutant.before)) if is_computed else set()


def _is_too_late(mutant: Mutant) -> bool:
    """Whether products lose bits only so late along k that a host has no time for them."""
    late = re.match(r"(\w+) > (\d+) \? mutant::narrow", mutant.edit.replacement)
    if late is None or re.search(rf"\b{late[1]} < (k|end|chunks)\b", mutant.text) is None:
        return False
    subject, turns = mutant.subject, int(late[2])
    period = family_named(subject.config.family).periods(subject.config, subject.problem).k
    on_host, on_gpu = (longest_of(subject, "k", extent) for extent in (LONG, ON_GPU))
    return on_host <= turns + period and on_gpu > turns * period and _counts_products(mutant, late[1])


def _counts_products(mutant: Mutant, name: str) -> bool:
    """Whether the loop over it, or the step that it takes, is along k."""
    return re.search(rf"\b{name} \+= (k_blk|chunk|prefetch|tile_depth|step)\b", mutant.text) is not None


def longest_of(subject: Subject, name: str, extent: Extent) -> int:
    """The longest extent of this name that the full verification tries."""
    return max((getattr(one, name) for one in _long_problems(subject, extent)), default=0)


def _long_problems(subject: Subject, extent: Extent) -> tuple[Problem, ...]:
    return long_problems(subject.config, subject.problem, most_products=extent.long_products)


def unseen(mutant: Mutant) -> str:
    """Why a host cannot see what a GPU may; "" where it could."""
    if _is_too_long(mutant):
        return "an extent so long that the full verification tries it on a GPU alone"
    if _is_cut(mutant):
        return "extents so long that the full verification tries them on a GPU alone"
    if _is_too_late(mutant):
        return "a k so long that the full verification tries it on a GPU alone"
    if mutant.before == "__syncwarp();  // every lane has read its own" and "mma.sync" in mutant.text:
        return "on a host products wait for every lane of the warp, which has read what it needs then"
    if _are_too_many(mutant):
        return "more tiles than 16 bits count, of which the full verification has so many on a GPU alone"
    if mutant.edit.operator == "narrower" and re.search(r"\* \((int|unsigned)\)\(?ld[abc]\b", mutant.after):
        return "offsets past 2**31 elements, which the full verification tries on a GPU alone"
    return ""
