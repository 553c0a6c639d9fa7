"""Time the construction of BACUGen's search space, here and in Kernel Tuner: nine parameters, the same rules.

    pip install kernel-tuner
    python -m benchmarks.search_space --output benchmarks/results/search-space.json

Both construct the space of SGEMM A B on Fermi with the rules of Table 1 of "Autotuning GEMMs for Fermi". tsm2-tune
also constructs the space without guidelines, which Kernel Tuner had not completed after 4 minutes. Times are seconds
on one core, each in a new process.
"""

from __future__ import annotations

import json
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import click

from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.gemm.bacugen import MOST_BLK, MOST_DIM, MOST_K_BLK, MOST_THREADS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import search_space

PROBLEM = Problem(10000, 10000, 10000, "f32")
TABLE_1, NONE = Guidelines(512, 2, 3), Guidelines(0, 0, 0)
FERMI = PROFILES["s2050"]

THREADS, M_THR, N_THR = "(m_dim * n_dim)", "(m_blk // m_dim)", "(n_blk // n_dim)"
STRIPES = "m_blk * k_blk + k_blk * n_blk"
BY_SMEM = f"{FERMI.smem_bytes_per_sm} / (4 * ((m_blk + 1) * k_blk + (k_blk + 1) * n_blk))"
BY_REGISTERS = (
    f"{FERMI.registers_per_sm} / (({M_THR} * {N_THR} + {M_THR} + {N_THR}) * {THREADS} + {STRIPES})"  # blocks
)
ENDS = {
    "m_dim": MOST_DIM, "n_dim": MOST_DIM, "k_blk": MOST_K_BLK, "m_blk": MOST_BLK, "n_blk": MOST_BLK,
    "m_dim_a": MOST_BLK, "n_dim_a": MOST_K_BLK, "m_dim_b": MOST_K_BLK, "n_dim_b": MOST_BLK,
}  # fmt: skip
RESTRICTIONS = [
    f"{THREADS} <= {MOST_THREADS}",
    f"{THREADS} % 32 == 0",
    "m_blk % m_dim == 0",
    "n_blk % n_dim == 0",
    f"m_blk * k_blk % {THREADS} == 0",
    f"k_blk * n_blk % {THREADS} == 0",
    f"m_dim_a * n_dim_a == {THREADS}",
    "m_blk % m_dim_a == 0",
    "k_blk % n_dim_a == 0",
    f"m_dim_b * n_dim_b == {THREADS}",
    "k_blk % m_dim_b == 0",
    "n_blk % n_dim_b == 0",
    *(
        f"min({blocks}, {FERMI.blocks_per_sm}, {FERMI.threads_per_sm} / {THREADS}) >= {TABLE_1.min_blocks_per_sm}"
        for blocks in (BY_SMEM, BY_REGISTERS)
    ),
    *(
        f"min({blocks}, {FERMI.blocks_per_sm}, {FERMI.threads_per_sm} / {THREADS}) * {THREADS}"
        f" >= {TABLE_1.min_threads_per_sm}"
        for blocks in (BY_SMEM, BY_REGISTERS)
    ),
    f"{M_THR} * {N_THR} / ({M_THR} + {N_THR}) >= {TABLE_1.min_reuse}",
]

Row = dict[str, str | int | float]


def ours(guidelines: Guidelines) -> Row:
    """Construct the space with tsm2-tune. Return its size and the processor seconds."""
    start = time.process_time()
    space = search_space(PROBLEM, FERMI, guidelines=guidelines, families=["gemm"])
    return {"configurations": len(space.kept), "seconds": time.process_time() - start}


def kernel_tuners() -> Row:
    """Construct the space with Kernel Tuner, with the rules as restrictions. Return its size and the seconds."""
    from kernel_tuner.searchspace import Searchspace

    tunables = {name: list(range(1, end + 1)) for name, end in ENDS.items()}
    start = time.process_time()
    space = Searchspace(tunables, RESTRICTIONS, MOST_THREADS)
    return {"configurations": space.size, "seconds": time.process_time() - start}


@click.command(cls=Command)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(output: Path) -> None:
    """Construct each space three times, in turns, and write every time."""
    rows: list[Row] = []
    for _ in range(3):
        for name, guidelines, construct in (
            ("tsm2-tune", "Table 1", (ours, TABLE_1)),
            ("tsm2-tune", "none", (ours, NONE)),
            ("kernel-tuner", "Table 1", (kernel_tuners,)),
        ):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                rows.append({"by": name, "guidelines": guidelines, **pool.submit(*construct).result()})
            click.echo(json.dumps(rows[-1]))
    facts = {
        "problem": PROBLEM.text, "device": FERMI.name, "host": platform.processor() or platform.machine(),
        "python": platform.python_version(), "kernel_tuner": version("kernel-tuner"), "rows": rows,
    }  # fmt: skip
    output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
