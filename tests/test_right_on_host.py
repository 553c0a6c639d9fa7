"""Every line of every template, in a kernel that is right on the host: on its problem and at its edges."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.mutation.subjects import Subject
from tests.right_on_host import missing, stored
from tsm2_tune.tuner.results.trial import Outcome

SUBJECTS = stored()


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS, ids=[f"{one.config.text} {one.problem.text}" for one in SUBJECTS])
def test_a_kernel_is_right(try_kernel: TryKernel, subject: Subject) -> None:
    result = try_kernel(subject.config, subject.problem, lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.slow
def test_no_line_of_a_family_in_one_of_its_types_is_untried() -> None:
    names = ", ".join(one.name for one in missing())
    assert not names, f"python -m tests.right_on_host adds to right_on_host.txt what has other lines: {names}"
