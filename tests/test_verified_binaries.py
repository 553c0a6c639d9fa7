"""The package brings the binaries that its texts name by the digest of their machine code."""

from __future__ import annotations

import json

import pytest

from tsm2_tune.pretuned import cubins, pretuned
from tsm2_tune.tuner.machine_code import code_of, machine_code_digest


@pytest.mark.parametrize("text", pretuned(), ids=lambda text: text.name)
def test_every_kernel_verified_in_full_has_its_binaries(text: object) -> None:
    lines = [json.loads(line) for line in text.file.read_text(encoding="utf-8").splitlines()]  # type: ignore[attr-defined]
    names = lines[0]["lines"]["trial"]
    trials = [dict(zip(names, line[1:], strict=True)) for line in lines[1:] if line[0] == "trial"]
    codes = {code for one in trials if one["full_verdict"] for code in one["verified_code"].split()}
    found = cubins.brought(codes)
    assert {code: machine_code_digest(binary) for code, binary in found.items()} == {code: code for code in codes}


def test_what_is_no_binary_has_no_machine_code() -> None:
    assert (code_of(b""), code_of(b"\x7fELF of a kind"), code_of(bytes(200))) == (None, None, None)
