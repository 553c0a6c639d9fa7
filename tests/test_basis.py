"""When a stored trial counts no more: another compiler or state of the L2, or another kernel of its configuration."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.databases import C128, C256, database_of
from tests.fabricated import BASIS, GPU, PROBLEM, add_text, plain_sql, trial, tuning_run
from tests.processes import python
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource, _code, code, digest_of
from tsm2_tune.tuner.results.fingerprint import basis
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[1] / "tsm2_tune"
RUN = tuning_run()


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("a;  // why\nb;\n", "a;\nb;"),
        ("// first\n\n\n  a;  \n", "  a;"),
        ("a /* one\n two */ b;", "a   b;"),
        ("a;  // goes \\\n on\nb;", "a;\nb;"),
        ('f("// no comment");', 'f("// no comment");'),
        ('f("\\"// none"); // one', 'f("\\"// none");'),
        ("c = '\"'; // one \"", "c = '\"';"),
        ("c = '\\''; // one '", "c = '\\'';"),
        ("a / b / c;", "a / b / c;"),
    ],
)
def test_a_comment_is_no_code(text: str, bare: str) -> None:
    assert code(text) == bare


@given(st.text("/*'\"\\\n\r\v a", max_size=24))
def test_the_code_of_a_text_is_that_of_its_paragraphs(text: str) -> None:
    assert code(text) == _code.__wrapped__(text)  # of the whole text at once


def test_texts_that_differ_in_comments_only_are_one_kernel() -> None:
    source = render(PROBLEM, C128)
    commented = replace(source, text=f"// more\n{source.text}")
    assert commented != source
    assert commented.is_same_kernel(source)
    assert commented.digest == source.digest == digest_of(code(source.text))
    others: list[KernelSource] = [
        replace(source, text=f"{source.text}int more;\n"),
        replace(source, kernel="other"),
        replace(source, defines=("INDEX_BITS=64",)),
        replace(source, launch=replace(source.launch, splits=7)),
        replace(source, dtype_name="f64"),
    ]
    assert not any(other.is_same_kernel(source) for other in others)


def test_times_rest_on_the_compiler_its_flags_and_the_state_of_the_l2() -> None:
    plain: tuple[Any, ...] = ("nvcc 13", "-O3", Cache.CLEAN, "")
    others = [
        (*plain[:at], other, *plain[at + 1 :]) for at, other in enumerate(("nvcc 12", "-O2", Cache.DIRTY, "headers"))
    ]
    assert len({basis(*one) for one in (plain, *others)}) == 5


# In a database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    database_of(path, *(trial(median_us, config) for median_us, config in ((490, C128), (500, C256))), run=RUN)
    return path


def texts_of(store: Store) -> set[str]:
    return {one.config.text for one in store.history(GPU, PROBLEM, ("tsm2",), BASIS).tried()}


def changed(path: Path, day: int = 9) -> None:
    """The file as if another kernel of C128 had been tried last, on this day."""
    other = "int other;\n"
    columns = "kernel, dtype, threads, rows_per_block, smem_bytes, columns_per_block, splits, flat_splits, persistent"
    plain_sql(
        path,
        f"INSERT OR IGNORE INTO source (digest, paragraphs, {columns})"
        f" SELECT '{digest_of(other)}', '{add_text(path, other)}', {columns} FROM source LIMIT 1",
    )
    plain_sql(
        path,
        f"UPDATE trial SET source_digest = '{digest_of(other)}', ended_at = '2026-09-0{day}T00:00:00+00:00'"
        f" WHERE config = '{C128.text}' AND superseded = 0",
    )


def test_only_a_configuration_with_changed_code_counts_as_untried(path: Path) -> None:
    changed(path)
    with Store.open(path, create=False) as store:
        store.supersede(GPU, PROBLEM, "another")
        store.supersede("another", PROBLEM, BASIS)
        assert store.best()[0].config == C128.text
        store.supersede(GPU, PROBLEM, BASIS)
        assert texts_of(store) == {C256.text}
        assert store.history(GPU, PROBLEM, ("tsm2",), BASIS).fastest_of_older() == (C128.text,)
        (row,) = store.best()
        assert (row.config, row.stale) == (C256.text, 0)
        assert [one.config for one in store.current(GPU)] == [C256]
        assert (store.trial(1).current, store.trial(2).current) == (False, True)
        number = store.add_trial(RUN, trial(480, C128))
        assert number == 3  # the old one stays as it was
        assert store.best()[0].trial_id == number
        assert store.history(GPU, PROBLEM, ("tsm2",), BASIS).fastest_of_older() == ()


@pytest.mark.parametrize(
    "change",
    [f"trial SET {one} WHERE config = '{C128.text}'" for one in ("rows_per_block = 64", "splits = 7")]
    + [
        f"source SET {one} WHERE digest = (SELECT source_digest FROM trial WHERE config = '{C128.text}')"
        for one in ("kernel = 'another'", "threads = 64", "flat_splits = 2")
    ],
)
def test_another_launch_or_entry_point_is_another_kernel(change: str, path: Path) -> None:
    plain_sql(path, f"UPDATE {change}")
    with Store.open(path, create=False) as store:
        store.supersede(GPU, PROBLEM, BASIS)
        assert texts_of(store) == {C256.text}


def test_a_kernel_that_changes_again_and_again_is_kept_each_time(path: Path) -> None:
    for day in (1, 2, 3):
        changed(path, day)
        with Store.open(path, create=False) as store:
            store.supersede(GPU, PROBLEM, BASIS)
            store.add_trial(RUN, trial(480, C128))
    assert plain_sql(path, f"SELECT count(*), sum(superseded) FROM trial WHERE config = '{C128.text}'") == [(4, 3)]


# In a source tree that is edited


def test_a_changed_constant_is_another_kernel_and_a_comment_is_none(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "tsm2_tune")
    family = FAMILIES["stream_a_fma"]
    template, tunables = f"templates/{family.template}", "generator/families/stream_a/kernel.py"
    script = (
        "from tsm2_tune.generator.families.stream_a import StreamAFmaConfig as Config\n"
        "from tsm2_tune.generator.problem import Problem\n"
        "from tsm2_tune.generator.render import render\n"
        'print(render(Problem(40, 2, 70, "f32"), Config(64, 1, 2, 4, 4, 1, 1, 1)).digest)'
    )

    def edit(file: str, old: str, new: str) -> None:
        changed = tmp_path / "tsm2_tune" / file
        text = changed.read_text()
        assert text.count(old) == 1
        changed.write_text(text.replace(old, new))

    def digest() -> str:
        """The digest in a process that imports the tree: -B, as two edits can share the second of a compiled file."""
        return python("-B", "-c", script, cwd=tmp_path, check=True).stdout

    before = digest()
    edit(template, "constexpr int width = ", "// said otherwise\nconstexpr int width = ")
    edit(tunables, "TILE_DEPTH = 64 ", "# said otherwise\nTILE_DEPTH = 64 ")
    assert digest() == before
    edit(tunables, "TILE_DEPTH = 64 ", "TILE_DEPTH = 32 ")
    assert digest() != before
