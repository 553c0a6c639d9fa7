"""The golden sources: of each family one text to read, of others what their paragraphs are, by digests.

A paragraph is what stands between empty lines, and most are in several texts. One that changed is shown as it was if
a text to read still has it.
"""

from __future__ import annotations

import difflib
import hashlib
from functools import cache
from pathlib import Path

from tests.cases import SOURCES
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem

GOLDEN = Path(__file__).parent / "golden"
DIGITS = 16  # of a digest
LABEL = 60  # of a paragraph's first line


def name_of(config: KernelConfig, problem: Problem) -> str:
    return config.text + (f"-{problem.op}" if problem.op != "nn" else "")


def path_of(config: KernelConfig, problem: Problem) -> Path:
    """Of the first of a family the text, of others the digests."""
    is_first = (config, problem) == next(one for one in SOURCES if one[0].family == config.family)
    return GOLDEN / f"{name_of(config, problem)}.{'cu' if is_first else 'txt'}"


def contents(path: Path, text: str) -> str:
    """What the file of a source that has this text holds."""
    return text if path.suffix == ".cu" else "".join(f"{digest}\n" for digest in digests(text))


def digests(text: str) -> list[str]:
    """A line for each paragraph: its digest, and how it begins."""
    return [described(paragraph) for paragraph in text.split("\n\n")]


def described(paragraph: str) -> str:
    begins = paragraph.strip().partition("\n")[0][:LABEL].rstrip()
    return f"{hashlib.sha256(paragraph.encode()).hexdigest()[:DIGITS]} {begins}".rstrip()


@cache
def readable() -> dict[str, str]:
    """The paragraphs of the texts to read, by what describes them."""
    paragraphs = (one for path in GOLDEN.glob("*.cu") for one in path.read_text().split("\n\n"))
    return {described(one): one for one in paragraphs}


def difference(path: Path, text: str) -> str:
    """Between the golden source and the text, as a patch; of a paragraph that no text here has, what describes it."""
    if path.suffix == ".cu":
        before = path.read_text()
    else:
        known = readable() | {described(one): one for one in text.split("\n\n")}
        before = "\n\n".join(known.get(one, f"[{one} ...]") for one in path.read_text().splitlines())
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), path.name, "now", lineterm="")
    return "\n".join(lines)
