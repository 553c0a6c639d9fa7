"""The system's C++ compiler as a toolchain for CUDA text."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.compiler import Toolchain, answer
from tsm2_tune.tuner.trial import in_a_line

HEADERS = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")

FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",  # fused multiply-adds, as nvcc makes them
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",  # two variants in one process must not share a symbol
    "-Wno-unknown-pragmas",
)
FLAGS_WHERE_TAKEN = (
    ("-march=native",),
    ("-fno-gnu-unique",),  # g++ only: unique symbols would be shared in spite of hidden visibility
    # An index past the end of an array that a thread has in registers, or a block in shared memory, is a fault.
    ("-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"),
)

# Of a text that is watched for races (races.h): a call before each access, of functions that are in the text. The
# compiler's own library for races is not linked, so what is linked otherwise has to be named.
WATCHED = (
    "-O1",
    "-fsanitize=thread",
    "-DTSM2_HOST_RACES",
    "-fno-threadsafe-statics",
    "-nodefaultlibs",
    "-Wl,-z,defs",
)
WATCHED_LIBRARIES = ("-lstdc++", "-lm", "-lc", "-lgcc_s", "-lgcc")
# A compiler that does not make this one lacks something of these.
WATCHED_SAMPLE = """
struct block { double of[32]; };
struct __attribute__((packed)) unaligned { char first; int second; double third; };
extern "C" __global__ void sample(block *blocks, unaligned *others, short *shorts)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    double *staged = reinterpret_cast<double *>(shared_bytes);
    staged[threadIdx.x] = blocks[0].of[threadIdx.x] + others[0].second * others[0].third;
    __syncthreads();
    blocks[1] = blocks[0];
    blocks[2] = block();
    shorts[threadIdx.x] = short(staged[0]);
}
"""

# What a text must not be searched in: comments and strings.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\s*\((?P<{0}>(?:[^()]|\([^()]*\))*)\)\s*)?"
_KERNEL = re.compile(
    r"__global__\s+" + _BOUNDS.format("before") + r"void\s+" + _BOUNDS.format("after") + r"(?P<name>\w+)\s*\("
)
_STATIC_SHARED = re.compile(
    r"(?<!extern )(?<!static )\b__shared__\b(?P<variable>[^;,=]*?\b(?P<name>\w+)(?:\[[^;,=]*)?;)?"
)


def host_text(text: str) -> str:
    """The CUDA text as the host's compiler gets it: line for line the same, and each kernel made known.

    A kernel is a `__global__ void` function at global scope that no preprocessor condition leaves out. Static
    shared variables become `static`, as the threads of a block share them, and are made known to what tells races.
    """
    code = _NO_CODE.sub(" ", text)
    kernels = [
        f"TSM2_HOST_KERNEL({', '.join(filter(None, (found['name'], found['before'] or found['after'])))})"
        for found in _KERNEL.finditer(code)
    ]

    def made_static(found: re.Match[str]) -> str:
        if found["name"] is None:
            return f"static {found[0]}"
        return f"static {found[0]} tsm2_host::know_shared({found['name']});"

    return "\n".join([_STATIC_SHARED.sub(made_static, text), *kernels, ""])


def compilable(text: str) -> str:
    """`host_text` behind our header: where that lies is so no part of the flags that results are stored with."""
    return f'#include "{HEADERS}/cuda_on_host.h"\n#line 1\n{host_text(text)}'


def host_toolchain() -> Toolchain:
    """The compiler named by $CXX, or else the first of c++, g++ and clang++ on PATH; ToolMissing without one."""
    compiler, *own_flags = compiler_command()
    flags = (*own_flags, *FLAGS, *_flags_taken(compiler))
    return Toolchain(
        compiler=compiler,
        version=_version(compiler),
        flags=flags,
        source_suffix=".cpp",
        suffix=".so",
        extra_digest=_extra_digest(),
        wrap=compilable,
    )


def watching(toolchain: Toolchain) -> Toolchain:
    """The host's compiler for a text in which races are to be told. It may lack that: see WATCHED_SAMPLE."""
    plain = (flag for flag in toolchain.flags if flag not in ("-O1", "-O2", "-O3"))
    return replace(toolchain, flags=(*plain, *WATCHED), libraries=WATCHED_LIBRARIES)


def compiler_command() -> list[str]:
    """The compiler's path, then what $CXX says besides; ToolMissing without one."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise ToolMissing(f"C++ compiler {os.environ['CXX']!r} is no command ({error}): mend or unset CXX") from None
    for name in named[:1] or COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return [os.path.abspath(path), *named[1:]]
    if named and os.path.exists(named[0]):
        raise ToolMissing(f"C++ compiler {named[0]!r} may not be run: $CXX names it; make it executable or unset CXX")
    if named:
        raise ToolMissing(f"C++ compiler {named[0]!r} not found: $CXX names it; install it or unset CXX")
    raise ToolMissing(
        f"no C++ compiler found: looked for $CXX and for {', '.join(COMPILERS)} in PATH; install g++ or clang++"
    )


@cache
def _version(compiler: str) -> str:
    return in_a_line(answer(compiler, "--version").messages.partition("\n")[0].strip())


@cache
def _flags_taken(compiler: str) -> tuple[str, ...]:
    """Those of FLAGS_WHERE_TAKEN that the compiler accepts."""
    return tuple(flag for flags in FLAGS_WHERE_TAKEN if _takes(compiler, flags) for flag in flags)


@cache
def _takes(compiler: str, flags: tuple[str, ...]) -> bool:
    return answer(compiler, "-Werror", *flags, "-x", "c++", "-fsyntax-only", os.devnull, errors=True).is_well


def cpu_facts() -> dict[str, str]:
    """What Linux says of the first CPU, by its names: "model name", "flags" and more; empty elsewhere."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def cpu_name() -> str:
    """The CPU's model, such as "Intel(R) Xeon(R) Processor"."""
    return in_a_line(cpu_facts().get("model name") or platform.processor() or platform.machine())


@cache
def _extra_digest() -> str:
    """SHA-256 of the headers, of `host_text`, and of the CPU's features, which -march=native compiles for."""
    facts = cpu_facts()
    features = facts.get("flags") or facts.get("Features") or platform.processor()
    digest = hashlib.sha256(f"{platform.machine()} {cpu_name()} {features}".encode())
    for file in (*sorted(HEADERS.glob("*.h")), Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()
