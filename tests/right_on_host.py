"""The kernels that are verified on the host: so few that every line of every template is in one.

    python -m tests.right_on_host    # add what right_on_host.txt lacks

They are chosen from those that a GPU is given and the golden ones. Others are there for what they do with their
numbers, or since a test plants a bug in them.
"""

from __future__ import annotations

from pathlib import Path

from tests.mutation.subjects import Subject, candidates, cost_of, covering, lines_of
from tests.spelling import spelt
from tsm2_tune.generator.problem import Problem

PATH = Path(__file__).parent / "right_on_host.txt"
COST_OF_A_KERNEL = 5e6  # cost of a kernel without products, to compile it


def stored() -> list[Subject]:
    """Return the subjects of the file."""
    return [subject(*line.split()) for line in PATH.read_text().splitlines()]


def subject(config: str, problem: str) -> Subject:
    """The configuration that is spelt so, for the problem."""
    return Subject(spelt(config), Problem.parse(problem))


def facts(subject: Subject) -> frozenset[str]:
    """Return the lines that the subject covers, and its family with its type."""
    return lines_of(subject) | {f"{subject.config.family} in {subject.problem.dtype_name}"}


def missing() -> list[Subject]:
    """So few candidates that, with those of the file, there is none with a fact that no other has."""
    there = set().union(*map(facts, stored()))
    new = [one for one in candidates() if facts(one) - there]
    return covering(new, lambda one: facts(one) - there, lambda one: COST_OF_A_KERNEL + cost_of(one))


if __name__ == "__main__":
    every = sorted(f"{one.config.text} {one.problem.text}\n" for one in (*stored(), *missing()))
    PATH.write_text("".join(every))
