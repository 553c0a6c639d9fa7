"""Texts of kernels are stored by paragraphs, and are read as they were."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.command import run
from tests.fabricated import PROBLEM, configuration, downgrade, plain_sql, source_text, trial, tuning_run
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.results.domains import MOST_KERNEL
from tsm2_tune.tuner.results.store import Store

FIRST, SECOND = configuration(128), configuration(256)


@pytest.fixture
def two(store: Store, path: Path) -> Path:
    for config in (FIRST, SECOND):
        store.add_trial(tuning_run(), trial(config=config))
    return path


def shown(path: Path, number: int) -> str:
    return run("source", str(number), "--db", str(path)).output


@pytest.mark.parametrize("family", ["stream_a_fma", "resident_b_fma_ring", "inner_fma"])
def test_texts_take_at_most_a_fifth(family: str, store: Store, path: Path) -> None:
    space = (one for one in FAMILIES[family].configurations() if FAMILIES[family].has(one, PROBLEM))
    tried = [trial(config=one, source=render(PROBLEM, one)) for one in islice(space, 0, 4000, 200)]
    store.add_trials(tuning_run(), tried)
    texts = {one.source.digest: one.source.text for one in tried}
    lengths = "SELECT sum(length(key) + length(text)), (SELECT sum(length(paragraphs)) FROM source) FROM paragraph"
    stored = sum(plain_sql(path, lengths)[0])
    assert len(texts) > 10
    assert stored <= sum(map(len, texts.values())) / 5
    assert {digest: source_text(path, digest) for digest in texts} == texts


def test_forgotten_text_takes_only_its_own_paragraphs(two: Path) -> None:
    assert run("forget", "1", "--db", str(two)).exit_code == 0
    assert shown(two, 2) == render(PROBLEM, SECOND).text
    ((keys,),) = plain_sql(two, "SELECT paragraphs FROM source")
    assert {key for (key,) in plain_sql(two, "SELECT key FROM paragraph")} == set(keys.split())


@pytest.mark.parametrize(
    ("tampering", "sentence"),
    [
        ("DELETE FROM paragraph", "of the kernel's text is missing"),
        (
            "UPDATE source SET paragraphs = (SELECT group_concat(key, ' ') FROM paragraph)",
            "does not match its digest",
        ),
        (
            f"UPDATE paragraph SET text = printf('%.*c', {MOST_KERNEL // 2}, 'x')",
            f"more than {MOST_KERNEL} characters",
        ),
    ],
)
def test_tampered_text_is_refused_in_a_sentence(tampering: str, sentence: str, two: Path) -> None:
    plain_sql(two, tampering)
    found = run("source", "1", "--db", str(two))
    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert sentence in found.stderr


def test_text_of_an_older_database_is_divided_unless_it_is_damaged(two: Path) -> None:
    before = shown(two, 1)
    downgrade(two)
    plain_sql(two, "UPDATE source SET text = x'ff' WHERE digest = ?", render(PROBLEM, SECOND).digest)
    assert shown(two, 1) == before == source_text(two, render(PROBLEM, FIRST).digest)
    found = run("source", "2", "--db", str(two))
    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1)
