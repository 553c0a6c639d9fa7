"""Draw the references anew: docs/api.md from signatures, docstrings and the comments of fields; docs/cli.md from the
commands and their options.

    python docs/reference.py

A reference stands between a line `<!-- drawn: NAME -->` and a line `<!-- end -->`; all else on a page is written by
people.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any

import click

import tsm2_tune
from tsm2_tune.cli import main

PAGES = tuple(Path(__file__).parent / name for name in ("api.md", "cli.md"))
REGION = re.compile(r"(<!-- drawn: (reference|commands) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
GROUPS = {  # heading -> names, in the order of the page
    "Functions": (
        "tune", "best", "confirm", "export", "pack", "check_pack", "report", "import_trials", "plan_space",
        "problems",
    ),
    "What they return": (
        "TuningResult", "BestRow", "Exported", "Packed", "PackCheck", "CheckedPart", "CheckedProduct", "Imported",
        "SearchSpace",
    ),
    "Problems and devices": ("Problem", "Target", "DeviceIdentity", "DeviceLimits"),
    "Configurations and trials": (
        "KernelConfig", "Candidate", "Rule", "Trial", "Outcome", "Verdict", "Measurement", "Cache", "Final",
    ),
    "Events": (
        "Event", "RunStarted", "ProblemStarted", "TrialStored", "TrialInterrupted", "FinalStored", "FinalFailure",
        "WinnerVerified", "VendorLeftOut", "ProblemLeft", "ProblemEnded", "Confirmed", "PairsStarted", "PairMeasured",
        "Noted", "FleetStarted", "OfRun", "RunEnded", "ExportEvent", "ChoiceStarted", "Narrowed", "KernelsChosen",
    ),
    "Errors": ("TuneError", "InputError", "DeviceError", "ToolMissing", "StoreError", "WorkerError"),
}  # fmt: skip
SIGNATURE_CHARACTERS = 100  # of a line


def page(text: str) -> str:
    """The page with the reference of now."""
    draw = {"reference": reference, "commands": commands}
    return REGION.sub(lambda found: found[1] + draw[found[2]]() + found[3], text)


def commands() -> str:
    """All commands, as Markdown: that which tunes first, then the others by name."""
    return "\n\n".join(said_of(name, one) for name, one in commands_of("tsm2-tune", main))


def commands_of(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """The command, if it does something by itself, and those below it."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield name, command
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            found = command.get_command(click.Context(command), below)
            assert found is not None
            yield from commands_of(f"{name} {below}", found)


def said_of(name: str, command: click.Command) -> str:
    """The heading, the usage, the help and a table of the options."""
    arguments = [
        one.make_metavar(click.Context(command)) for one in command.params if isinstance(one, click.Argument)
    ]
    options = [one for one in command.params if isinstance(one, click.Option)]
    lines = "\n".join(f"| {spelt(one)} | {option_help(one)} |" for one in options)
    parts = [f"## {name}", f"```\n{' '.join([name, '[OPTIONS]', *arguments])}\n```", *paragraphs(command.help or "")]
    return "\n\n".join([*parts, *([f"| option | |\n|---|---|\n{lines}"] if options else [])])


def paragraphs(text: str) -> Iterator[str]:
    """Those of a help text; what click is told to leave as it is becomes a block."""
    for one in inspect.cleandoc(text).split("\n\n"):
        if one.startswith("\b\n"):
            yield "```\n" + textwrap.dedent(one[2:]) + "\n```"
        else:
            yield textwrap.fill(" ".join(one.split()), 120, break_long_words=False, break_on_hyphens=False)


def spelt(option: click.Option) -> str:
    """Its names, and what it takes."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return f"`{names}`"
    kind = option.type
    takes = option.metavar or ("\\|".join(kind.choices) if isinstance(kind, click.Choice) else kind.name.upper())
    return f"`{names} {takes.replace(' RANGE', '')}`"


def option_help(option: click.Option) -> str:
    """Its help, its bounds and its default."""
    text = " ".join((option.help or "").split()).replace("|", "\\|")
    facts = []
    kind = option.type
    if isinstance(kind, click.IntRange | click.FloatRange):
        least = None if kind.min is None else f"{'above' if kind.min_open else 'at least'} {kind.min:.12g}"
        most = None if kind.max is None else f"at most {kind.max:.12g}"
        facts.append(", ".join(filter(None, (least, most))))
    if option.required:
        facts.append("required")
    elif option.show_default and not (option.is_flag and not option.secondary_opts):
        default = option.default
        if option.secondary_opts:
            default = (option.opts if default else option.secondary_opts)[0]
        facts.append(f"default: `{default}`")
    return f"{text} ({'; '.join(facts)})" if facts else text


def reference() -> str:
    """All groups, as Markdown."""
    return "\n\n".join(
        part for heading, names in GROUPS.items() for part in (f"## {heading}", *map(described, names))
    )


def described(name: str) -> str:
    """Return the description of a public name."""
    found = getattr(tsm2_tune, name)
    if isinstance(found, UnionType):
        members = ", ".join(f"`{one.__name__}`" for one in found.__args__)
        return f"### {name}\n\nOne of {members}."
    about = (inspect.getdoc(found) or "").strip()
    if inspect.isfunction(found):
        return f"### {name}\n\n```python\n{signature(found)}\n```\n\n{about}"
    parts = [f"### {name}", about]
    for heading, lines in (("Fields", fields(found)), ("Computed", properties(found)), ("Made by", makers(found))):
        listed = "\n".join(f"- {line}" for line in lines)
        if listed:
            parts.append(listed if heading == "Fields" else f"{heading}:\n\n{listed}")
    return "\n\n".join(parts)


def signature(function: Any) -> str:
    """Return the call's signature, with as many parameters on a line as fit."""
    found = inspect.signature(function)
    parts, lines = [], [f"{function.__name__}("]
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        parts.append(f"{parameter.name}: {parameter.annotation}{default}")
    for part in parts:
        line = f"{lines[-1]} {part}," if len(lines) > 1 else ""
        if line and len(line) <= SIGNATURE_CHARACTERS:
            lines[-1] = line
        else:
            lines.append(f"    {part},")
    return "\n".join([*lines, f") -> {found.return_annotation}"])


def fields(record: type) -> Iterator[str]:
    """Its fields or members, each with its type and what its comment says."""
    comments = comments_of(record)
    if issubclass(record, Enum):
        yield from (f"`{one.name}` = {one.value!r}: {comments[one.name]}" for one in record)
    elif dataclasses.is_dataclass(record):
        for one in dataclasses.fields(record):
            yield f"`{one.name}: {one.type}`: {comments[one.name]}"


def properties(record: type) -> Iterator[str]:
    """What is computed of its fields, each with the first line of its docstring."""
    for name, member in vars(record).items():
        compute = getattr(member, "fget", None) or getattr(member, "func", None)
        if compute is not None and not name.startswith("_"):
            yield f"`{name}: {inspect.signature(compute).return_annotation}`: {_first(member)}"


def makers(record: type) -> Iterator[str]:
    """The functions of the class that make one, each with the first line of its docstring."""
    for name, member in vars(record).items():
        if isinstance(member, classmethod) and not name.startswith("_"):
            bound = getattr(record, name)
            spelt = f"{record.__name__}.{name}{inspect.signature(bound)}".replace("'", "")
            yield f"`{spelt}`: {_first(bound)}"


def comments_of(record: type) -> dict[str, str]:
    """What the comments of its fields say: those on their lines, else those above them."""
    source = textwrap.dedent(inspect.getsource(record))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {one.start[0]: one for one in tokens if one.type == tokenize.COMMENT}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign | ast.Assign):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        own = [comments[line] for line in range(node.lineno, (node.end_lineno or 0) + 1) if line in comments]
        above, line = [], node.lineno - 1
        while line in comments and comments[line].line.lstrip().startswith("#"):
            above.insert(0, comments[line])
            line -= 1
        assert isinstance(target, ast.Name)
        found[target.id] = " ".join(one.string.lstrip("# ") for one in own or above)
    return found


def _first(member: object) -> str:
    """Return the first paragraph of a docstring, on one line."""
    text = inspect.getdoc(member) or ""
    return " ".join(text.partition("\n\n")[0].split())


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text()))
