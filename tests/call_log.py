"""Fakes log their calls here."""

from __future__ import annotations

from typing import TypeVar

Call = TypeVar("Call")
Answer = TypeVar("Answer")


def logged(log: list[Call], call: Call, answer: Answer) -> Answer:
    """Append the call to the log. Return the answer."""
    log.append(call)
    return answer
