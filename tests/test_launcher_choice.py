"""The launcher's choice is the Python's: kernel, launch, words, and times but for the rounding of sums."""

from __future__ import annotations

import os
import random
import re
from dataclasses import astuple
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tsm2_tune
from tests.fabricated import GPU, Winners, exported, imported, trial, tuning_run, winners
from tests.kept_objects import keep
from tests.library_calls import Call, random_calls
from tests.test_library_choice import arrays, everything
from tsm2_tune.generator.problem import Problem
from tsm2_tune.runtime.elements import DTYPES
from tsm2_tune.runtime.launcher import TYPES_IN_C
from tsm2_tune.tuner.export.launcher_build import launcher_binary
from tsm2_tune.tuner.export.measured_times import NOTHING_KNOWN, Known

PACKAGE = Path(tsm2_tune.__file__).parent

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("toolchain", "session_cache")]


def modules(folder: Path, found: Winners, known: Known) -> tuple[ModuleType, ModuleType]:
    """A module without a launcher, and one whose launcher chooses."""
    plain, compiled = (imported(text, folder) for text in texts(found, known))
    return plain, compiled


def texts(found: Winners, known: Known) -> tuple[str, str]:
    """Return the text of the module without the compiled launcher and with it."""
    compiled = exported("module", found, known=known, launcher=launcher_binary())
    return exported("module", found, known=known), compiled


def modules_of_everything(folder: Path, seed: int) -> tuple[ModuleType, ModuleType]:
    """Modules of winners of every type and op, of two GPUs; of seed 0 nothing more is known of them."""
    plain, compiled = (imported(text, folder) for text in texts_of_everything(seed))
    return plain, compiled


@cache
def texts_of_everything(seed: int) -> tuple[str, str]:
    """Made once a test run, by whichever process asks first."""
    places = [Path(os.environ["XDG_CACHE_HOME"], f"everything-{seed}-{name}.py") for name in ("plain", "compiled")]
    if not all(place.exists() for place in places):
        for place, text in zip(places, texts(*everything(seed)), strict=True):
            keep(place, text.encode())
    plain, compiled = (place.read_text(encoding="utf-8") for place in places)
    return plain, compiled


def told(match: Any) -> tuple[Any, list[float]]:
    """Return the parts of a match that must be equal, and its numbers."""
    w = match.winner
    numbers = [match.distance, match.expected_us, match.vendor_us]
    place = (w.dtype, w.op, w.m, w.n, w.k, w.config, w.device, w.digest)
    same = (*place, astuple(match.launch), match.other_device, match.across, str(match))
    return same, [-1.0 if number is None else number for number in numbers]


def chosen(module: ModuleType, call: Call, device: str, *, is_made: bool = False) -> tuple[Any, list[float]]:
    """`is_made`: out is."""
    conjugates = tuple(operation == "C" for operation in call.ops)
    a, b, out = arrays(call)
    try:
        product = module.Product.of(a, b, None if is_made else out, conjugates=conjugates, math=None)
        return told(module.choose(product, device))
    except (LookupError, ValueError) as error:
        return str(error), []


def counted(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The choices that Python makes."""
    asked, best = list[Any](), module._best

    def counting(*arguments: Any, **named: Any) -> Any:
        asked.append(arguments)
        return best(*arguments, **named)

    monkeypatch.setattr(module, "_best", counting)
    return asked


@pytest.mark.parametrize(("seed", "device"), [(0, GPU), (1, GPU), (2, GPU), (3, "another"), (1, "NVIDIA A100")])
def test_the_choice_is_the_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, device: str) -> None:
    plain, compiled = modules_of_everything(tmp_path, seed)
    calls = random_calls(600, seed)
    expected = [chosen(plain, call, device) for call in calls]
    made = [chosen(plain, call, device, is_made=True) for call in calls]
    of_kernels = [bool(numbers) for _, numbers in expected]
    assert sum(of_kernels) > 100
    for call, (same, numbers) in zip(calls, expected, strict=True):
        found = chosen(compiled, call, device)
        assert found == (same, pytest.approx(numbers, rel=1e-12)), call
    by_python = counted(compiled, monkeypatch)
    compiled.choose_by_layout.cache_clear()
    for call, is_there in zip(calls, of_kernels, strict=True):
        chosen(compiled, call, device)
        assert not (by_python and is_there), call
        by_python.clear()
    for call, (same, numbers) in zip(calls, made, strict=True):
        found = chosen(compiled, call, device, is_made=True)
        assert found == (same, pytest.approx(numbers, rel=1e-12)), call
    assert len(by_python) < 0.8 * sum(bool(numbers) for _, numbers in made) or device != GPU


def test_types_are_numbered_alike() -> None:
    core, library = (
        (PACKAGE / name).read_text(encoding="utf-8") for name in ("core/core.h", "tuner/export/c/tsm2.h")
    )
    in_core = re.search(r"enum core_type \{(.*?)CORE_TYPES", core, re.DOTALL)
    assert in_core is not None
    assert re.findall(r"CORE_(\w+),", in_core[1]) == [name.upper() for name in TYPES_IN_C]
    named = ", ".join(f"TSM2_{name.upper()} = {number}" for number, name in enumerate(DTYPES))
    assert f"typedef enum {{ {named} }} tsm2_type;" in library


def test_what_is_no_description_of_a_product_is_refused(tmp_path: Path) -> None:
    found, sources = winners(tmp_path, (tuning_run(), trial(problem=Problem(64, 4, 64, "f32"))))
    _, compiled = modules(tmp_path, (found, sources), NOTHING_KNOWN)
    right = (0, (64, 4, 64), (64, 0), (64, 0), (64, 0), False, (False, False), False, GPU)
    assert compiled.launcher().choose(*right)[0] == 0
    assert compiled.launcher().choose(*right[:-1], "another")[4] == 1
    rng = random.Random(0)
    for at in range(len(right)):
        for wrong in (None, "x", (1,), 1.5):
            with (
                pytest.raises((TypeError, OverflowError)) if not is_fine(at, wrong) else pytest.MonkeyPatch.context()
            ):
                compiled.launcher().choose(*right[:at], wrong, *right[at + 1 :])
    with pytest.raises(TypeError):
        compiled.launcher().choose(*right[: rng.randrange(7)])


def is_fine(at: int, wrong: Any) -> bool:
    """Return whether the value is a truth value, as any is, or the name of a device; None is the host."""
    return at in (5, 7) or (at == 8 and (wrong is None or isinstance(wrong, str)))
