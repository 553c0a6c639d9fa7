"""The kernels that tests are of: cases.txt spells them, in lists by what each is there for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType

from tests.fabricated import imported, trial
from tests.spelling import spelt
from tests.stencil_kernels import STENCILS
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.space import unfit
from tsm2_tune.tuner.export.module import exported_module, launcher_binary
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import TuningRun

PATH = Path(__file__).with_name("cases.txt")


@cache
def lists() -> dict[str, list[list[str]]]:
    """Return the lists of the file, each with the words of its kernels."""
    found = dict[str, list[list[str]]]()
    for line in PATH.read_text().splitlines():
        said = line.partition("#")[0].strip()
        if said.startswith("["):
            last = found[said.strip("[]")] = []
        elif said:
            last.append(said.split())
    return found


def with_problems(name: str) -> list[tuple[KernelConfig, Problem]]:
    return [(spelt(config), Problem.parse(text)) for config, text in lists()[name]]


def with_orders(name: str) -> list[tuple[KernelConfig, str]]:
    return [(spelt(config), op) for config, op in lists()[name]]


def module_of_list(
    name: str, run: TuningRun, folder: Path, *, binaries: bool = False, launcher: bool = False
) -> ModuleType:
    """Export the kernels of a list as the run's winners, each with its time in microseconds. Import the module."""
    with Store.open(folder / "results.db", create=True) as store:
        for config, problem, us in lists()[name]:
            store.add_trial(run, trial(float(us), spelt(config), problem=Problem.parse(problem), blocks_per_sm=2))
        compiled = launcher_binary() if launcher else None
        return imported(exported_module(store, store.best(), binaries=binaries, launcher=compiled), folder)


SOURCES = with_problems("golden")
HERMITIAN = {"tx": "cx", "nxt": "jxt", "txt": "cxt", "nx": "jx"}


def case_of(config: KernelConfig, dtype: str, op: str) -> Problem:
    """Return a problem of the type and op that the configuration's family may compute: small if it is a batch."""
    is_batched = family_named(config.family).is_batched
    m, n, k, batch = (8, 4, 8, 37) if is_batched else (64, 4, 64, 1)
    return Problem(m, m if "x" in op else n, k, dtype, op, batch)


# Every configuration in the dtypes that its family knows in that order.
CASES = [
    (config, case)
    for config, op in with_orders("ordered")
    for dtype in DTYPES
    for case in (case_of(config, dtype, op),)
    if family_named(config.family).supports(case)
    and int(config.tunables.get("vector_bytes", 16)) // int(config.tunables.get("rows_per_vector", 1))
    >= DTYPES[dtype].element_bytes
    and unfit(family_named(config.family), config, case) is None
] + [
    (config, case_of(config, dtype, op))
    for config, op in with_orders("conjugated")
    for dtype in family_named(config.family).dtypes
    if DTYPES[dtype].is_complex
]
CASES += [
    (config, case)
    for config, op in with_orders("of itself")
    for dtype in DTYPES
    for one in ((op, HERMITIAN[op]) if DTYPES[dtype].is_complex else (op,))
    for case in (case_of(config, dtype, one),)
    if family_named(config.family).supports(case)
]
# Configurations that a search tries late, one for each family and type: loads without a policy.
FIRST_OF = {(config.family, case.dtype_name): (config, case) for config, case in reversed(CASES)}
CASES += [(later, case) for config, case in FIRST_OF.values() for later in family_named(config.family).later(config)]
CASES += STENCILS
# Kernels where C is large both ways, in each case that BLAS has: of many tiles in two bands, and of a few.
GENERAL = [
    (config, replace(problem, op="".join(ops)))
    for config, problem in with_problems("general")
    for ops in product("ntc" if problem.dtype.is_complex else "nt", repeat=2)
]
PAST_INT = with_problems("past 31 bits")
PAST_UNSIGNED = with_problems("past 32 bits")
F32 = Problem(4096, 8, 4096, "f32")
OPS = ("nn", "ntt", "tn", "ttt")
CONJUGATING = ("cn", "jtt", "nc")
OF_ITSELF = ("tx", "nxt")  # a matrix times itself, which is as high as it is wide


def every_source() -> list[KernelSource]:
    """The configurations in every dtype and storage order that their families know."""
    return [
        render(one, config)
        for config, problem in SOURCES
        for dtype in DTYPES
        for op in (
            *OPS,
            *(CONJUGATING if DTYPES[dtype].is_complex else ()),
            *(OF_ITSELF if problem.m == problem.n else ()),
        )
        if family_named(config.family).supports(one := replace(problem, dtype_name=dtype, op=op))
    ]
