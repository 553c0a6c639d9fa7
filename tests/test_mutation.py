"""The mutation test tells bugs from changes that are none. Here one of each operator; thousands are a command.

python -m tests.mutation --count 2500
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cases import SOURCES
from tests.mutation.arguments import EVERY_ARGUMENT
from tests.mutation.baseline import SHORT, Baselines, compiled, verified
from tests.mutation.command import host_tools, to_try
from tests.mutation.edits import Edit
from tests.mutation.report import score, table
from tests.mutation.sample import OPERATORS, Mutant, chosen, edits_of
from tests.mutation.subjects import Subject, subjects, text_of
from tests.mutation.tokens import Text
from tests.mutation.trial import Bench, Judged, Result
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.published import Ism2Config, Tsm2Config
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.results.trial import Binary, Outcome
from tsm2_tune.tuner.worker.client import Worker

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
def bench(support_path: str, toolchain: Toolchain) -> Iterator[Bench]:
    bench = Bench(Baselines(host_tools(support_path, toolchain)))
    yield bench
    bench.close()


def test_what_only_a_host_or_only_a_gpu_compiles_is_left_alone() -> None:
    text = Text(
        "#ifdef TSM2_HOST\nint a;\n#else\nint b;\n#endif\nint c; // d\n#if INDEX_BITS == 64\nint e;\n#endif\n"
    )
    assert [token.text for token in text.tokens] == ["int", "c", ";"]


def test_an_operand_ends_where_one_that_binds_less_begins() -> None:
    text = Text("x = a + b * c[i + 1] - d < e;")
    plus, times = (next(i for i in text.indices if text.text(i) == sign) for sign in "+*")
    assert text.between(plus, text.right_operand(plus)) == "+ b * c[i + 1]"
    assert text.between(times, text.right_operand(times)) == "* c[i + 1]"
    assert text.between(text.left_operand(plus), plus) == "a +"


def test_a_mutant_has_the_lines_of_its_text() -> None:
    assert Edit("flag", 2, 7, "x").applied("a\nb\nc\nd\n").count("\n") == 4


def test_every_family_has_subjects_in_all_dtypes_that_it_has_texts_of() -> None:
    found = subjects()
    assert {family for family, _ in found} == set(FAMILIES)
    assert all(found.values())


def test_an_argument_is_of_a_line_that_some_template_has() -> None:
    texts = (render(problem, config).text for config, problem in SOURCES)
    lines = {line.strip() for text in texts for line in text.splitlines()}
    quoted = {one.before for one in EVERY_ARGUMENT}
    assert not [one for one in quoted if not any(re.search(one, line) for line in lines)]


def test_seeded_sample_has_every_operator_family_and_dtype() -> None:
    among = subjects(("gemv",), ("f32", "c64"))
    first = chosen(among, count=60, seed=3)
    assert [one.key for one in first] == [one.key for one in chosen(among, count=60, seed=3)]
    assert len({one.key for one in first}) == 60
    assert len({(one.subject.problem.dtype_name, one.edit.operator) for one in first}) >= 2 * (len(OPERATORS) - 2)


def test_survivors_are_tried_again_after_the_others() -> None:
    mutants = chosen(subjects(("gemv",), ("f32",)), count=3, seed=1)
    names = (Judged.SURVIVED, Judged.KILLED)
    known = {one.key: result(one, judged) for one, judged in zip(mutants, names, strict=False)}
    assert to_try(mutants, known) == [mutants[2], mutants[0]]


@pytest.mark.host
def test_a_kernel_that_adds_up_what_it_has_scaled_is_right(worker: Worker, quick: Toolchain) -> None:
    bits = SCALED_FIRST.problem.index_bits
    binary = compiled(text_of(SCALED_FIRST).source, SCALED_FIRST, quick, bits)
    assert isinstance(binary, Binary)
    assert verified(worker, SCALED_FIRST, ((bits, binary.path),), SHORT).outcome is Outcome.OK


@pytest.mark.host
@pytest.mark.parametrize(("subject", "operator", "was", "becomes", "judged"), FIXED)
def test_a_mutant_is_judged(
    bench: Bench, subject: Subject, operator: str, was: str, becomes: str, judged: Judged
) -> None:
    found = bench.judge(mutant_of(subject, operator, was, becomes))
    assert found.judged == judged, found
    assert score([found]) == 100
    assert found.operator in table([found])


def mutant_of(subject: Subject, operator: str, was: str, becomes: str) -> Mutant:
    """The first one of what begins so to what begins so."""
    source = text_of(subject).source
    edits = (
        edit
        for edit in edits_of(subject)
        if edit.operator == operator
        and source[edit.start : edit.end].startswith(was)
        and edit.replacement.startswith(becomes)
        and bool(edit.replacement) == bool(becomes)
    )
    return Mutant(subject, next(edits))


def result(mutant: Mutant, judged: Judged) -> Result:
    """Return the result of the mutant as it is stored."""
    return Result(mutant.key, "", "", "", "", mutant.edit.operator, 1, "", "", judged.value, "", 1.0)
