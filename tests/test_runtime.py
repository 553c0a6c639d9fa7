"""The runtime of exported modules: ordinary modules that become one file."""

from __future__ import annotations

import ast
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tsm2_tune.runtime
from tests.command import run
from tests.databases import database_of
from tests.fabricated import (
    GPU,
    PROBLEM,
    Winners,
    configuration,
    handmade,
    imported,
    kernel,
    kernels_of,
    trial,
    tuning_run,
    winners,
)
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.dtypes import DTYPES, ELEMENT_TYPES, PLUS_TIMES
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.runtime import elements
from tsm2_tune.tuner.export.bundle import MODULES, PACKAGE
from tsm2_tune.tuner.export.cubins import compiled_cubins
from tsm2_tune.tuner.export.module import module_text

FOLDER = Path(tsm2_tune.runtime.__file__).parent
NEEDS_NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
TREES = {name: ast.parse((FOLDER / f"{name}.py").read_text()) for name in MODULES}


def test_every_module_is_copied() -> None:
    found = {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("[!_]*.py")}
    assert found == {*MODULES, "module_data"}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_needs_only_those_before_it(name: str) -> None:
    before = {f"{PACKAGE}.{other}".replace("/", ".") for other in (*MODULES[: MODULES.index(name)], "module_data")}
    needed = {node.module for node in TREES[name].body if isinstance(node, ast.ImportFrom)}
    assert {module for module in needed if module and module.startswith(PACKAGE)} <= before


def test_no_two_modules_define_the_same_name() -> None:
    names = Counter[str]()
    for tree in TREES.values():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names[node.name] += 1
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
    assert [name for name, count in names.items() if count > 1] == []


def test_its_element_types_are_the_generators() -> None:
    assert list(elements.DTYPES) == list(ELEMENT_TYPES)
    for name, dtype in elements.DTYPES.items():
        assert dtype.itemsize == DTYPES[name].element_bytes
        assert name == "bf16" or dtype == np.dtype(DTYPES[name].numpy_name)
    others = [dtype for dtype in DTYPES.values() if dtype.name not in ELEMENT_TYPES]
    assert {(dtype.math, dtype.element_name): dtype.name for dtype in others} == elements.MATHS
    units = {dtype.math: dtype.semiring for dtype in others if dtype.semiring is not PLUS_TIMES}
    assert {math: (one.one, one.zero) for math, one in units.items()} == elements.UNITS
    sums = {name: DTYPES[name].sum.numpy_name for name in ELEMENT_TYPES if DTYPES[name].sum is not DTYPES[name]}
    assert {name: str(dtype) for name, dtype in elements.SUMS.items()} == sums
    assert (elements.LARGEST_32_BIT_OFFSET, elements.INDEX_WIDTHS) == (LARGEST_32_BIT_OFFSET, INDEX_BITS)


# Binaries


def module_with(cubins: dict[Any, bytes], found: Winners, folder: Path) -> Any:
    return imported(module_text(kernels_of(found), {}, "", cubins), folder)


def test_what_binaries_of_a_kernel_share_is_stored_once(tmp_path: Path) -> None:
    found = winners(tmp_path, (tuning_run(), trial(problem=PROBLEM, source=handmade(PROBLEM))))
    shared, digest = random.Random(1).randbytes(100_000), found[0][0].source_digest
    cubins = {(digest, bits, "sm_90a"): shared + bytes([bits]) for bits in INDEX_BITS}
    sizes = []
    for stored in ({}, cubins):
        module = module_with(stored, found, tmp_path)
        sizes.append(Path(module.__file__).stat().st_size)
    assert sizes[1] - sizes[0] < 1.4 * len(shared)
    assert [module.cubin_of(module.WINNERS[0], *key[1:]) for key in cubins] == [*cubins.values()]


@pytest.mark.usefixtures("impatient")
@NEEDS_NVCC
def test_binaries_of_each_index_width_are_compiled_and_guarded(tmp_path: Path) -> None:
    old, told = tuning_run("Tesla K40c", compute_capability="3.5"), list[str]()
    both = tuning_run(), old
    found = winners(tmp_path, *((run, trial(problem=PROBLEM, source=handmade(PROBLEM))) for run in both))
    cubins, (why,) = compiled_cubins(kernels_of(found), told.append)
    assert re.search(r"does not compile handmade: .*sm_35", why)
    assert [key[1:] for key in cubins] == [(32, "sm_90a"), (64, "sm_90a")]
    assert all(binary.startswith(b"\x7fELF") for binary in cubins.values())
    assert told[0].startswith("compiling binaries: 1 of ")
    module = module_with(cubins, found, tmp_path)
    winner = next(one for one in module.WINNERS if one.device == GPU)
    for bits in INDEX_BITS:
        assert module.cubin_of(winner, bits, "sm_90a") == cubins[winner.digest, bits, "sm_90a"]
    key = (winner.digest, 32, "sm_90a")
    module.CUBINS[key] = (module.CUBINS[key][0], *module.CUBINS[winner.digest, 64, "sm_90a"][1:])
    with pytest.raises(RuntimeError, match=r"binary of .* does not match its digest"):
        module.cubin_of(winner, 32, "sm_90a")


@pytest.mark.parametrize("chosen", [(), ("--no-binaries",)])
def test_without_a_compiler_it_is_told_unless_no_binary_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: tuple[str, ...]
) -> None:
    def missing(*_: object) -> None:
        raise ToolMissing("nvcc not found: set CUDA_HOME")

    monkeypatch.setattr("tsm2_tune.tuner.export.cubins.cuda_toolchain", missing)
    monkeypatch.setattr("tsm2_tune.tuner.export.cubins.FOLDER", tmp_path)  # unpacking an archive takes a second
    database_of(tmp_path / "results.db", trial(source=kernel(configuration(), PROBLEM)))
    output = tmp_path / "best.py"
    done = run("export", "--db", str(tmp_path / "results.db"), "--format", "module", "--output", str(output), *chosen)
    said = "" if chosen else "no binary: nvcc not found: set CUDA_HOME; the module compiles at the first call\n"
    assert (done.exit_code, done.output) == (0, f"{said}wrote {output}: 1 kernel for 1 problem\n")
    assert imported(output.read_text(), tmp_path).CUBINS == {}
