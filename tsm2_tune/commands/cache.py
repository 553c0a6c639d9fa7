"""`tsm2-tune cache`: the cache of compiled kernels."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from tsm2_tune.commands.errors import Group
from tsm2_tune.commands.options import json_option
from tsm2_tune.console import tables
from tsm2_tune.console.printable import print_json
from tsm2_tune.tuner.compile import cache as binaries


@click.group(cls=Group)
def cache() -> None:
    """Show or clear the cache of compiled kernels."""


@cache.command()
@json_option
def show(as_json: bool) -> None:
    """Show the folder, the size and the size limit of the cache.

    If the cache exceeds its limit, a run removes the least recently used kernels when it starts. The limit is 2 GiB,
    or the value of the environment variable TSM2_TUNE_CACHE_LIMIT, such as 500M or 4G.
    """
    folder, kept = binaries.cache_folder(), list(binaries.entries())
    used = sorted(entry.used for entry in kept)
    facts = {
        "folder": str(folder),
        "entries": len(kept),
        "bytes": sum(entry.size_bytes for entry in kept),
        "limit_bytes": binaries.cache_limit_bytes(),
        "oldest_use": _moment(used[0]) if used else None,
        "newest_use": _moment(used[-1]) if used else None,
    }
    if as_json:
        print_json(facts)
        return
    console = tables.console()
    for name, value in facts.items():
        tables.print_line(console, f"{name.replace('_', ' ')}: {'none' if value is None else value}")


@cache.command()
def clear() -> None:
    """Remove every compiled kernel from the cache; kernels are recompiled when needed."""
    kept = list(binaries.entries())
    in_use = binaries.clear()
    size_bytes = sum(entry.size_bytes for entry in kept)
    sentence = f"removed {len(kept)} compiled kernels, {size_bytes} bytes"
    click.echo(sentence + (f"; {in_use} working folders are in use, and were kept" if in_use else ""))


def _moment(seconds: float) -> str:
    """Return a Unix time as ISO 8601 text in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
