"""Draw fifty docstrings of the package and fifty sentences of the pages at random, to be read by somebody new.

    python docs/draw.py SEED

Each is printed alone, with its file. `docs/notebook/0137` has what readers of two draws said.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAWN = 50
LEAST_WORDS = 5  # of a sentence
GENERATED = ("cli.md",)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> Iterator[str]:
    """Yield each docstring of the package after its file, line and name."""
    for path in sorted((ROOT / "tsm2_tune").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                name, line = getattr(node, "name", "(module)"), getattr(node, "lineno", 1)
                yield f"{path.relative_to(ROOT)}:{line} {name}: {text.strip()}"


def sentences() -> Iterator[str]:
    """Yield each sentence of the pages after its page. Tables, headings and examples have none."""
    folders = (ROOT / "docs", ROOT / "docs/kernels", ROOT / "docs/design")
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for of in folders for page in sorted(of.glob("*.md"))),
    ]
    for page in pages:
        text = "" if page.name in GENERATED else page.read_text(encoding="utf-8")
        for block in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if block.lstrip().startswith(("|", "#", "<", "!")):
                continue
            lines = (line.strip().lstrip("-*> ") for line in block.splitlines() if not line.startswith("|"))
            for sentence in re.split(r"(?<=[.!?:]) +(?=[A-Z`\[])", " ".join(lines)):
                if len(sentence.split()) >= LEAST_WORDS:
                    yield f"{page.relative_to(ROOT)}: {sentence}"


def main(seed: int) -> None:
    """Print the draw."""
    draws = random.Random(seed)
    for name, every in (("docstrings", list(docstrings())), ("sentences", list(sentences()))):
        print(f"## {DRAWN} of {len(every)} {name}, seed {seed}\n")
        for number, text in enumerate(draws.sample(every, DRAWN), 1):
            print(f"{number}. {text}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
