"""Why a host cannot see what a GPU may."""

from __future__ import annotations

import re

from tests.mutation.edits import constants
from tests.mutation.sample import Mutant
from tests.mutation.subjects import text_of


def refused(mutant: Mutant) -> str:
    """Why nvcc does not take what a host's compiler takes; "" where it does."""
    value = re.match(r"static (?:const )?\w+ \*?\w+ = (.*)", mutant.after)
    if mutant.edit.operator == "state" and value is not None:
        known = constants(text_of(mutant.subject))
        if not set(re.findall(r"[A-Za-z_]\w*", value[1])) <= known:
            return "nvcc refuses a static variable whose value is computed"
    short = re.match(r"(?:short|mutant::half_word) (\w+);", mutant.after)
    if short is not None and f'"=r"({short[1]})' in mutant.text:
        return "nvcc refuses 16 bits for an operand of 32 of an instruction"
    return ""


def unseen(mutant: Mutant) -> str:
    """Why a host cannot see what a GPU may; "" where it could."""
    if mutant.before == "__syncwarp();  // every lane has read its own" and "mma.sync" in mutant.text:
        return "on a host products wait for every lane of the warp, which has read what it needs then"
    if mutant.before == "wgmma_wait<0>();":
        return "a host's products are done when they are begun"
    if mutant.edit.operator == "narrower" and re.search(r"\* \((int|unsigned)\)\(?ld[abc]\b", mutant.after):
        return "offsets past 2**31 elements, which the full verification tries on a GPU alone"
    return ""
