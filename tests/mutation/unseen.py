"""Why a host cannot see what a GPU may."""

from __future__ import annotations

import re

from tests.mutation.baseline import LONG
from tests.mutation.edits import constants
from tests.mutation.sample import Mutant
from tests.mutation.subjects import Subject, text_of
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
    longest = [
        max((getattr(one, cut[1]) for one in _long_problems(mutant.subject, extent)), default=0)
        for extent in (LONG, ON_GPU)
    ]
    return longest[0] <= int(cut[2], 16) < longest[1]


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


def _long_problems(subject: Subject, extent: Extent) -> tuple[Problem, ...]:
    return long_problems(subject.config, subject.problem, most_products=extent.long_products)


def unseen(mutant: Mutant) -> str:
    """Why a host cannot see what a GPU may; "" where it could."""
    if _is_too_long(mutant):
        return "an extent so long that the full verification tries it on a GPU alone"
    if _are_too_many(mutant):
        return "more tiles than 16 bits count, of which the full verification has so many on a GPU alone"
    if mutant.edit.operator == "narrower" and re.search(r"\* \((int|unsigned)\)\(?ld[abc]\b", mutant.after):
        return "offsets past 2**31 elements, which the full verification tries on a GPU alone"
    return ""
