"""(Problem, KernelConfig) -> KernelSource: the one Jinja environment of the kernels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from tsm2_tune import __version__
from tsm2_tune.generator.config import KernelConfig, Launch
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import DTYPES, Problem

SUPPORT_THREADS = 256  # of a block of the tuner's own kernels
SPARSE_TERMS = 32  # that a line of a sparse operand keeps: the most products of which its results are sums
INDEX_BITS = (32, 64)  # widths of a kernel's index
REFERENCE_BLOCKS_PER_SM = 2  # of those that compute the reference, which bounds their registers


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The CUDA text of one configuration. It holds no shape: one text serves every m, n and k of a dtype.

    The shape decides only the width of the index, which is a definition at compile time (`defines`).
    """

    kernel: str  # name of the extern "C" entry point
    text: str
    defines: tuple[str, ...]
    launch: Launch
    dtype_name: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("tsm2_tune"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def index_defines(bits: int) -> tuple[str, ...]:
    """The definition that gives a text's index so many bits."""
    return (f"INDEX_BITS={bits}",)


def render(problem: Problem, config: KernelConfig, *, version: str = __version__) -> KernelSource:
    """The CUDA text of this configuration for the problem's op and dtype: equal input, equal bytes.

    `version` is the tsm2-tune that the text's first lines name.
    """
    family = family_named(config.family)
    text = (
        environment()
        .get_template(family.template)
        .render(
            **config.tunables,
            **family.context(config, problem),
            config=config.text,
            op=problem.op,
            dtype=problem.dtype,
            conjugated_a=problem.conjugated[0],
            conjugated_b=problem.conjugated[1],
            version_text=version,
        )
    )
    return KernelSource(
        kernel=config.family,
        text=text,
        defines=index_defines(problem.index_bits),
        launch=family.launch(config, problem),
        dtype_name=problem.dtype_name,
    )


def support_source() -> str:
    """The CUDA text of the tuner's own kernels, which fill, compare, flush and measure ceilings."""
    template = environment().get_template("support.cu.jinja")
    return template.render(
        dtypes=DTYPES.values(),
        threads=SUPPORT_THREADS,
        reference_blocks_per_sm=REFERENCE_BLOCKS_PER_SM,
        sparse_terms=SPARSE_TERMS,
        version_text=__version__,
    )
