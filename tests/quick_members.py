"""Runs in processes of their own that take few samples, and verify winners by few calls."""

from __future__ import annotations

from collections.abc import Callable

from tsm2_tune.tuner import member

QUICK = "from tests.quick_command import make_quick; make_quick(setattr)"


def quick_members(setattr: Callable[[object, str, object], None]) -> None:
    """Have processes that this one starts tune so from now on."""
    paths, _, serving = member.START.partition("from ")
    setattr(member, "START", f"{paths}{QUICK}; from {serving}")
