"""Verification accepts right kernels, and rejects what a careless or a malicious hand might do to one.

The right kernels have every line of every template. `python -m tests.planted_bugs --device 0` tries bugs too that
only a GPU shows. Here is one mutant of each operator; `python -m tests.mutation --count 2500` tries thousands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import pytest

from tests.cases import SOURCES
from tests.conftest import TryKernel
from tests.mutation.__main__ import host_tools, score, table
from tests.mutation.equivalent import ARGUMENTS, single
from tests.mutation.operators import OPERATORS, Edit
from tests.mutation.sample import Mutant, chosen, edits_of
from tests.mutation.subjects import Subject, subjects, text_of
from tests.mutation.trial import Baselines, Judged, compiled, verified
from tests.mutation.trial import Bench as MutantBench
from tests.planted_bugs import ON_HOST, Bench, rejection
from tests.planting import GPU, Bug, bugs
from tests.right_on_host import missing, stored
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.published import Ism2Config, Tsm2Config
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain, watching
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.worker.client import Worker

pytestmark = pytest.mark.slow

RIGHT = stored()


@pytest.mark.parametrize("subject", RIGHT, ids=[f"{one.config.text} {one.problem.text}" for one in RIGHT])
def test_a_kernel_is_right(try_kernel: TryKernel, subject: Subject) -> None:
    result = try_kernel(subject.config, subject.problem, str, probes=True)
    assert result.outcome is Outcome.OK, result.detail


def test_no_line_of_a_family_in_one_of_its_types_is_untried() -> None:
    names = ", ".join(one.name for one in missing())
    assert not names, f"python -m tests.right_on_host adds to right_on_host.txt what has other lines: {names}"


@pytest.fixture(scope="module")
def bench(quickest: Toolchain, quick: Toolchain, worker: Worker) -> Bench:
    return Bench(quickest, quick, worker, ON_HOST, watching(host_toolchain()))


@pytest.mark.parametrize("bug", [one for one in bugs() if one.way != GPU], ids=lambda bug: bug.full_name)
def test_a_planted_bug_is_rejected(bench: Bench, bug: Bug) -> None:
    found = rejection(bug, bench, is_whole=False)
    assert found is not None, "accepted"
    assert found[1], "nothing is said of it"


def test_no_bug_is_planted_twice() -> None:
    """Families share lines of templates: a bug is planted once, in one family that shows it."""
    same = [
        (one.name, other.name)
        for one, other in combinations(filter(lambda bug: bug.way != GPU, bugs()), 2)
        if (one.original, one.planted) == (other.original, other.planted)
    ]
    assert same == []


def test_every_class_has_bugs_in_several_families_and_types() -> None:
    every = [bug for bug in bugs() if bug.kind]
    for kind in {bug.kind for bug in every}:
        families = {bug.config.family for bug in every if bug.kind == kind}
        assert len(families) >= 3 or kind == "alignment", kind
    assert len({bug.config.family for bug in every}) >= 18
    types = {bug.problem.dtype_name for bug in every}
    assert types >= {"f32", "f64", "c64", "c128", "bf16", "f16", "tf32", "minplus_f32"}


# --- Mutants ---


SIMPLE = Subject(Tsm2Config("v3", 64, 8, 6), Problem(128, 8, 256, "f64", "nn"))
SPLIT = Subject(
    StreamAFmaConfig(64, 1, 4, 8, 4, splits=3, row_tiles=1, min_blocks=1), Problem(512, 4, 256, "f32", "nn")
)
SCALED_FIRST = Subject(Ism2Config(2, 32, 2, 6, 64), Problem(64, 2, 64, "f64", "nn"))

# Subject, operator, what stood there, what is put there; and what becomes of it.
FIXED = (
    (SIMPLE, "dropped term", "c * tile_depth +", "", Judged.KILLED),
    (SIMPLE, "dropped term", "sum[c] += a[q] * staged_step[c * tile_depth + q]", "", Judged.KILLED),
    (SIMPLE, "barrier", "__syncthreads()", "", Judged.KILLED),
    (SIMPLE, "comparison", "<=", "<", Judged.EQUIVALENT),
    (SIMPLE, "swapped name", "lda", "ldb", Judged.KILLED),
    (SIMPLE, "narrower", "row_of_A[", "mutant::narrow", Judged.KILLED),
    (SIMPLE, "flag", "inside && first + c < n", "true", Judged.KILLED),
    (SIMPLE, "rounding", "a[q] * staged_step[c * tile_depth + q]", "mutant::low(", Judged.KILLED),
    (SIMPLE, "value", "alpha", "mutant::flushed", Judged.KILLED),
    (SIMPLE, "value", "alpha", "mutant::clamped", Judged.KILLED),
    (SIMPLE, "value", "alpha", "mutant::finite", Judged.KILLED),
    (SPLIT, "constant", "4", "5", Judged.KILLED),
    (SPLIT, "arithmetic", "*", "+", Judged.KILLED),
    (SPLIT, "copy", "cp_async_fence", "", Judged.KILLED),
    (SPLIT, "barrier", "__syncthreads()", "", Judged.KILLED),
    (SIMPLE, "state", "", "static ", Judged.KILLED),
)


@pytest.fixture(scope="module")
def mutant_bench(support_code: bytes, toolchain: Toolchain) -> Iterator[MutantBench]:
    bench = MutantBench(Baselines(host_tools(support_code, toolchain)))
    yield bench
    bench.close()


def test_a_sample_has_every_family_dtype_and_operator() -> None:
    found = subjects()
    assert {family for family, _ in found} == set(FAMILIES)
    assert all(found.values())
    among = {place: of_place for place, of_place in found.items() if place in (("gemv", "f32"), ("gemv", "c64"))}
    first = chosen(among, count=60, seed=3)
    assert [one.key for one in first] == [one.key for one in chosen(among, count=60, seed=3)]
    assert len({one.key for one in first}) == 60
    assert len({(one.subject.problem.dtype_name, one.edit.operator) for one in first}) >= 2 * (len(OPERATORS) - 2)


def test_an_argument_is_of_a_line_that_some_template_has() -> None:
    texts = (render(problem, config).text for config, problem in SOURCES)
    lines = {line.strip() for text in texts for line in text.splitlines()}
    assert not [one for one in ARGUMENTS if not any(re.search(one.before, line) for line in lines)]
    names = {one.name for of_place in subjects().values() for one in of_place}
    assert {line.partition(" | ")[0] for line in single()} <= names


def test_a_kernel_that_adds_up_what_it_has_scaled_is_right(worker: Worker, quick: Toolchain) -> None:
    binary = compiled(text_of(SCALED_FIRST).source, SCALED_FIRST, quick, SCALED_FIRST.problem.index_bits)
    assert verified(worker, SCALED_FIRST, binary).outcome is Outcome.OK


@pytest.mark.parametrize(("subject", "operator", "was", "becomes", "judged"), FIXED)
def test_a_mutant_is_judged(
    mutant_bench: MutantBench, subject: Subject, operator: str, was: str, becomes: str, judged: Judged
) -> None:
    source = text_of(subject).source

    def is_meant(edit: Edit) -> bool:
        puts = edit.replacement.startswith(becomes) and bool(edit.replacement) == bool(becomes)
        return edit.operator == operator and source[edit.start : edit.end].startswith(was) and puts

    mutant = Mutant(subject, next(filter(is_meant, edits_of(subject))))
    found = mutant_bench.judge(mutant)
    assert found.judged == judged, found
    assert len(mutant.text.split("\n")) == len(source.split("\n"))
    assert score([found]) == 100
    assert found.operator in table([found])
