"""Reader of the lines of `--json`, and their description in docs/json.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs/json.md").read_text(encoding="utf-8")
OF_EVERY_LINE = {"event", "time"}

Line = dict[str, Any]


def documented() -> dict[str, set[str]]:
    """Heading of a line or an object -> the fields in its table."""
    found: dict[str, set[str]] = {}
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, rest = part.partition("\n")
        cells = re.findall(r"^\| ([^|]*`[^|]*) \|", rest.partition("\n## ")[0], re.MULTILINE)
        found[heading] = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    return found


FIELDS = documented()


def lines_of(text: str) -> list[Line]:
    """Each line is one object; nothing else is there."""
    assert text == "" or text.endswith("\n")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    assert all(isinstance(line, dict) for line in lines)
    return lines


def assert_documented(line: Line) -> None:
    """The line has the fields that its heading names, and no other ones."""
    name = line["event"]
    expected = FIELDS["trial"] - {"trial_id"} if name == "trial_interrupted" else FIELDS[name]
    expected = expected | {"run"} if name == "run_ended" else expected
    assert set(line) == OF_EVERY_LINE | expected, name
