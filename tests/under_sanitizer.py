"""Every configuration of tests/test_gpu.py at two odd shapes and past a tile, each started once: little enough for
compute-sanitizer.

    compute-sanitizer --tool racecheck python -m tests.under_sanitizer --part 1/8

Each part is a process of its own: run as many beside one another as there are cores.
"""

from __future__ import annotations

from dataclasses import replace

import click

from benchmarks.versus_cublas import part_of
from tests.cases import CASES, GENERAL
from tests.conftest import compiled
from tsm2_tune.api.parse import family_names
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.generator.space.space import unfit
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.checks import every_check
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import verify

SHAPES = ((97, 13, 259), (641, 7, 131))


def problems(config: KernelConfig, case: Problem) -> tuple[Problem, ...]:
    """Return two problems of odd shapes, and one larger than a tile of C; of a batch, those of its probes.

    The last is aligned, so that kernels take their way for whole vectors.
    """
    family = family_named(config.family)
    if case.is_batched:
        return (*edge_problems(config, case), case)
    launch = family.launch(config, case)
    past = ((launch.rows_per_block + 8, launch.columns_per_block + 8, 136),) if launch.columns_per_block else ()
    shapes = [(n, n, m) if case.is_gram else (m, n, k) for m, n, k in (*SHAPES, *past)]
    return tuple(replace(case, m=m, n=n, k=k) for m, n, k in shapes)


def stacks(config: KernelConfig, case: Problem) -> tuple[Problem, ...]:
    """Return batches of three of `problems`, if the kernel has a version for batches."""
    family = family_named(config.family)
    batches = () if case.is_batched else (replace(one, batch=3) for one in problems(config, case))
    return tuple(one for one in batches if family.supports(one) and unfit(family, config, one) is None)


def verdict(
    gpu: CudaDevice, target: Target, support: Support, config: KernelConfig, case: Problem, problem: Problem
) -> Verdict:
    """Return the verdict on one call of the case's kernel.

    The support kernels, which are slow to load here, are loaded already.
    """
    source = render(case, config)
    binary = compiled(source.text, source.kernel, target.toolchain, source.defines)
    operands = Operands(gpu, support, problem, index_bits=problem.index_bits)
    loaded = BoundKernel(gpu, operands, Entry(binary.code, source.kernel, source.launch))
    try:
        return verify(gpu, operands, loaded, seed=11, checks=every_check(problem)[:1])
    finally:
        loaded.free()
        operands.free()


@click.command(cls=Command)
@click.option("--part", default="1/1", show_default=True, help="Such as 2/8: every eighth, from the second on.")
@click.option("--family", help="These alone, such as gemv,ladder.")
@click.option("--batches", is_flag=True, help="Batches of three products of each kernel that has a version for them.")
def main(part: str, family: str | None, batches: bool) -> None:
    """Say what was right; exit code 1 where a result was wrong."""
    first, step = part_of(part)
    chosen = family_names(family)
    target = find_target("0")
    code = compiled(support_source(), "", target.toolchain).code
    gpu = CudaDevice(0, code)
    supports: dict[str, Support] = {}
    wrong = 0
    cases = [one for one in (*CASES, *GENERAL) if one[0].family in (chosen or (one[0].family,))]
    for config, case in cases[first - 1 :: step]:
        if case.dtype_name not in supports:
            supports[case.dtype_name] = Support(gpu, code, case.dtype_name)
        for problem in (stacks if batches else problems)(config, case):
            rendered = replace(case, batch=problem.batch)
            found = verdict(gpu, target, supports[case.dtype_name], config, rendered, problem)
            wrong += not found.correct
            click.echo(f"{config.text} {problem.text}: {found.detail}")
    for support in supports.values():
        support.free()
    gpu.close()
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
