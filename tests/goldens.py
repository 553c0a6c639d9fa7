"""The golden sources: of some families one text to read; of all others the digests of their paragraphs, a line each.

A paragraph is what stands between empty lines, and most are in several texts. `python -m tests.goldens` writes all
anew.
"""

from __future__ import annotations

import difflib
import hashlib
from functools import cache
from pathlib import Path

from tests.cases import SOURCES
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render

GOLDEN = Path(__file__).parent / "golden"
# One for each way in which kernels differ: the published ones, a stencil; A through registers, by FMA or tensor
# cores; lanes along rows; both operands through shared memory.
READABLE = {
    *("tsm2", "ism2", "gemm", "ladder", "stream_a_fma", "resident_b_fma", "row_lanes_register_b", "inner_dmma"),
    "staged_dmma",
}
DIGESTS = GOLDEN / "digests.txt"
DIGITS = 6  # of a paragraph's digest
Source = tuple[KernelConfig, Problem]


def spelling(source: Source) -> str:
    """Return the source's line in cases.txt."""
    config, problem = source
    return f"{config.text} {problem.text}"


def path_of(source: Source) -> Path:
    """Return the file with the source's text, or with its digest."""
    family = source[0].family
    is_first = source == next(one for one in SOURCES if one[0].family == family)
    return GOLDEN / f"{family}.cu" if family in READABLE and is_first else DIGESTS


def digest_of(paragraph: str) -> str:
    return hashlib.sha256(paragraph.encode()).hexdigest()[:DIGITS]


@cache
def golden_digests() -> dict[str, list[str]]:
    """By what spells a source."""
    lines = (line.rpartition(": ") for line in DIGESTS.read_text().splitlines())
    return {source: found.split() for source, _, found in lines}


def difference(source: Source, text: str) -> str:
    """Between the golden source and the text, as a patch, in which digests stand for former paragraphs."""
    path = path_of(source)
    if path == DIGESTS:
        known = {digest_of(one): one for one in text.split("\n\n")}
        before = "\n\n".join(known.get(one, f"[{one} ...]") for one in golden_digests().get(spelling(source), []))
    else:
        before = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), path.name, "now", lineterm="")
    return "\n".join(lines)


def update(texts: dict[Source, str]) -> None:
    """Write all golden files anew."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for source, text in texts.items():
        if path_of(source) != DIGESTS:
            path_of(source).write_text(text)
    others = {spelling(one): text.split("\n\n") for one, text in texts.items() if path_of(one) == DIGESTS}
    lines = (f"{one}: {' '.join(map(digest_of, paragraphs))}\n" for one, paragraphs in others.items())
    DIGESTS.write_text("".join(lines))


if __name__ == "__main__":
    update({(config, problem): render(problem, config).text for config, problem in SOURCES})
