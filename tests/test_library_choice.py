"""A C library describes a call to the core as it is, and tells the core's choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calls import Call
from tests.fabricated import GPU
from tests.library_calls import (
    NOT_SUPPORTED,
    OTHERS,
    SUCCESS,
    InProcess,
    choices,
    compared,
    fabricated_library,
    random_calls,
)
from tests.on_host import IN_C
from tests.packs_of_everything import everything, kernels_of_everything, pack_of_everything
from tsm2_tune.runtime.choice.choose import core_record
from tsm2_tune.runtime.choice.core import NO_KERNEL
from tsm2_tune.tuner.packs.core_pack import core_of
from tsm2_tune.tuner.packs.left_out import with_gain_errors

pytestmark = IN_C


def core_product(call: Call) -> bytes:
    """The product that the core reads. A vector is column-major and row-major if its elements are adjacent."""
    lds = []
    shapes = (call.m, call.k), (call.k, call.n), (call.m, call.n)
    for (rows, columns), operation, ld in zip(shapes, (*call.ops, "N"), call.leading, strict=True):
        stored = (rows, columns) if operation == "N" else (columns, rows)
        own = stored[0] if stored[1] == 1 else ld
        other = 1 if stored[1] == 1 else stored[1] if stored[0] == 1 and ld == 1 else 0
        lds.append((own, other) if operation == "N" else (other, own))
    conj_a, conj_b = (operation == "C" and call.dtype.startswith("c") for operation in call.ops)
    is_gram = call.a == call.b and call.m == call.n and lds[0] == lds[1][::-1]
    return core_record(call.dtype, (call.m, call.n, call.k), lds, (conj_a, conj_b), is_gram)


@pytest.mark.parametrize(
    ("seed", "device"), [(0, (GPU, 9, 0)), (2, (GPU, 9, 0)), (3, OTHERS), (1, ("NVIDIA H100", 9, 0))]
)
def test_a_library_tells_the_cores_choice(
    there: InProcess, tmp_path: Path, seed: int, device: tuple[str, int, int]
) -> None:
    found, known = everything(seed)
    kernels, calls = kernels_of_everything(seed), random_calls(600, seed)
    core = core_of(with_gain_errors(kernels, known.rates), known.rates)
    library = str(fabricated_library(tmp_path, *pack_of_everything(seed), known=known, found=found))
    told, times, chosen = there(choices, library, calls, device), there(compared, library, calls, device), 0
    for call, (status, text, error), compared_times in zip(calls, told, times, strict=True):
        choice = core.choose(core_product(call), device[0])
        if choice.reason == NO_KERNEL:
            assert (status, text) == (NOT_SUPPORTED, ""), call
            assert error.startswith(f"no {call.dtype} kernel for op "), call
            continue
        assert (status, text) == (SUCCESS, core.explanation(choice, device[0])), call
        has_cubin = kernels[choice.kernel].winner.compute_capability == f"{device[1]}.{device[2]}"
        runs = has_cubin and not choice.is_too_large
        expected = (SUCCESS, choice.us, choice.vendor_us, choice.is_vendors) if runs else (NOT_SUPPORTED, 0, 0, True)
        assert compared_times == expected, call
        chosen += 1
    assert chosen > 100
