"""Exports hold binaries of verified machine code, by its digest; the package brings those of its texts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.command import run
from tests.databases import database_of
from tests.fabricated import FAKE_CODE, GPU, PROBLEM, configuration, fake_binary, imported, plain_sql, trial
from tests.fake_compilers import fake_toolkit
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.pretuned import pretuned
from tsm2_tune.tuner.compile.elf_digest import machine_code_digest
from tsm2_tune.tuner.export import cubins
from tsm2_tune.tuner.results.trial import Outcome, Verdict
from tsm2_tune.tuner.worker.protocol import AttemptResult


def test_every_kernel_verified_in_full_has_its_binaries() -> None:
    codes = set[str]()
    for text in pretuned():
        head, *lines = map(json.loads, text.file.read_text(encoding="utf-8").splitlines())
        for kind, *values in lines:
            tried = dict(zip(head["lines"][kind], values, strict=True))
            codes.update(tried["verified_code"].split() if tried.get("full_verdict") else ())
    found = cubins.brought(codes)
    assert {code: machine_code_digest(binary) for code, binary in found.items()} == {code: code for code in codes}


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a toolkit that compiles to FAKE_CODE, and make it the one that is used. No archive is unpacked."""
    monkeypatch.setattr(cubins, "FOLDER", tmp_path)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake_toolkit(tmp_path / "toolkit", fake_binary())


def stored(path: Path, code: str | None) -> Path:
    database_of(path / "results.db", trial(verified_code=code))
    return path / "results.db"


def exported(path: Path, *options: str) -> tuple[int, str, list[bytes]]:
    """Export a module; return the exit code, what is said, and the machine code that the module holds."""
    output = path.with_name("best.py")
    done = run("export", "--db", str(path), "--output", str(output), "--format", "module", *options)
    if done.exit_code:
        assert not output.exists()
        return done.exit_code, done.output, []
    module = imported(output.read_text(encoding="utf-8"), path.parent)
    (winner,) = module.WINNERS
    keys = [key for key in module.CUBINS if key[0] == winner.digest]
    return 0, done.output, [module.cubin_of(winner, *key[1:]) for key in keys]


OTHER = fake_binary(b"instructionS")


def test_a_binary_of_the_verified_machine_code_is_exported(tmp_path: Path, toolkit: Path) -> None:
    code, said, binaries = exported(stored(tmp_path, FAKE_CODE))
    assert (code, binaries) == (0, [fake_binary()] * len(INDEX_BITS)), said


@pytest.mark.slow
@pytest.mark.parametrize(("code", "binary"), [(FAKE_CODE, OTHER), (FAKE_CODE, b"\x7fELF"), (None, fake_binary())])
def test_what_nobody_verified_is_refused_by_kernel(
    tmp_path: Path, toolkit: Path, code: str | None, binary: bytes
) -> None:
    """Refuse another compiler's code, no code at all, and a verdict from before digests were stored."""
    fake_toolkit(toolkit, binary)
    database = stored(tmp_path, code)
    status, said, _ = exported(database)
    assert status == 2
    assert f"{configuration().text} for {PROBLEM.text} on {GPU}" in said
    assert "--allow-unverified" in said
    assert exported(database, "--allow-unverified")[::2] == (0, [binary] * len(INDEX_BITS))
    assert exported(database, "--no-binaries")[::2] == (0, [])


def test_a_binary_that_was_changed_in_the_cache_is_not_exported(tmp_path: Path, toolkit: Path) -> None:
    database = stored(tmp_path, FAKE_CODE)
    exported(database)
    kept = [file for file in (tmp_path / "cache").rglob("*.cubin") if file.read_bytes() == fake_binary()]
    assert kept
    for file in kept:
        file.write_bytes(OTHER)
    status, said, binaries = exported(database)
    assert OTHER not in binaries
    assert status == 2 or binaries == [fake_binary()] * len(INDEX_BITS), said


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.WRONG_RESULT])
def test_a_verdict_without_digests_is_given_anew_where_the_device_is(
    tmp_path: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    result = AttemptResult(outcome, "C[0, 0] is wrong", verdict=Verdict(True, 0.0, "right"), verified_code=FAKE_CODE)
    tuner = SimpleNamespace(verify_in_full=lambda problem, config: result, target=None)
    doubles = {
        "spec_of": lambda device: "0",
        "find_target": lambda spec: SimpleNamespace(),
        "device_lock": lambda target: nullcontext(),
        "Tuner": lambda target, options: nullcontext(tuner),
    }
    for name, double in doubles.items():
        monkeypatch.setattr(cubins, name, double)
    database = stored(tmp_path, None)
    status, said, binaries = exported(database)
    kept = plain_sql(database, "SELECT outcome, verified_code FROM trial")
    if outcome is Outcome.OK:
        assert (status, binaries, kept) == (0, [fake_binary()] * len(INDEX_BITS), [("ok", FAKE_CODE)]), said
    else:
        assert (status, kept) == (2, [(outcome.value, None)])
        assert "computes a wrong result if compiled by this machine's compiler, and cannot win any more" in said
