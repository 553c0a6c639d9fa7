"""Every template on the host at odd shapes, with all the calls of the probes: ten minutes of one core.

    python -m tests.odd_shapes_on_host --part 1/2

Each family, dtype and storage order of tests/test_gpu.py once, with few splits, which are slow on the host.
Each part is a process of its own: run as many beside one another as there are cores.
"""

from __future__ import annotations

from dataclasses import fields, replace

import click

from benchmarks.versus_cublas import part_of
from tests.cases import CASES
from tests.conftest import compiled
from tests.quick import quick_toolchain
from tsm2_tune.api.parse import family_names
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.device.interface import KernelFault
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.checks import every_check
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import verify

SHAPES = (
    *((101, n, 127) for n in (1, 3, 5, 7, 13, 31, 33, 63)),  # prime m and k
    *((1, 1, 1), (1009, 7, 1), (29, 13, 31), (7, 5, 1)),  # k = 1, m < 32
)
SPLITS = 3


def with_few_splits(config: KernelConfig) -> KernelConfig:
    if "splits" not in {field.name for field in fields(config)}:
        return config
    return replace(config, splits=min(SPLITS, config.splits))  # type: ignore[attr-defined, call-arg]


def trouble(device: HostDevice, support: str, toolchain: Toolchain, config: KernelConfig, problem: Problem) -> str:
    """Return what the verification finds wrong, or "" if every call is right."""
    source = render(problem, config)
    binary = compiled(source.text, source.kernel, toolchain, source.defines)
    operands = Operands(device, Support(device, support, problem.dtype_name), problem, index_bits=problem.index_bits)
    loaded = BoundKernel(device, operands, Entry(binary.path, source.kernel, source.launch))
    try:
        found = verify(device, operands, loaded, seed=11, checks=every_check(problem))
    except KernelFault as fault:
        return str(fault)
    finally:
        loaded.free()
        operands.free()
        operands.support.free()
    return "" if found.correct else found.detail


@click.command(cls=Command)
@click.option("--part", default="1/1", show_default=True, help="Such as 2/8: every eighth, from the second on.")
@click.option("--family", help="These alone, such as gemv,ladder.")
def main(part: str, family: str | None) -> None:
    """Say what was wrong; exit code 1 where anything was."""
    first, step = part_of(part)
    toolchain = host_toolchain()
    support, quick = compiled(support_source(), "", toolchain).path, quick_toolchain(toolchain)
    once = {(case.op, case.dtype_name, config.family): (config, case) for config, case in reversed(CASES)}
    chosen = family_names(family)
    cases = [one for one in once.values() if one[0].family in (chosen or (one[0].family,))]
    wrong = 0
    for config, case in cases[first - 1 :: step]:
        device = HostDevice(seed=3, support_path=support)
        config = with_few_splits(config)
        found = []
        for m, n, k in SHAPES:
            problem = Problem(*((n, n, m) if case.is_gram else (m, n, k)), case.dtype_name, case.op)
            detail = trouble(device, support, quick, config, problem)
            found += [f"{problem.shape}: {detail}"] if detail else []
        device.close()
        wrong += len(found)
        click.echo(f"{config.text} {case.dtype_name} {case.op}: {'; '.join(found) or 'right'}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
