"""The toolchain that compiles CUDA text for the CPU: the system's C++ compiler, optionally with race detection."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.compile.compiler import ANSWER_SECONDS, Toolchain, answer, script_digest
from tsm2_tune.tuner.compile.elf_digest import machine_code_digest
from tsm2_tune.tuner.compile.environment import OF_LINKERS, OF_TEXTS, Variables, deciding, program_path
from tsm2_tune.tuner.compile.failure_cause import Interrupted
from tsm2_tune.tuner.compile.shared_objects import compiler_command, shared_object
from tsm2_tune.tuner.device.emulator import preprocess
from tsm2_tune.tuner.device.emulator.preprocess import host_text
from tsm2_tune.tuner.results.trial import in_a_line

HEADERS = Path(__file__).with_name("include")

FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",  # fused multiply-adds, like nvcc
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",  # two variants in one process must not share a symbol
    "-Wno-unknown-pragmas",
)
FLAGS_IF_ACCEPTED = (
    ("-march=native",),
    ("-fno-gnu-unique",),  # g++ only: unique symbols are shared in spite of hidden visibility
    # Trap at an index past the end of an array in registers or in shared memory.
    ("-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"),
)

_TEMPORARY = re.compile(r"[^\s\"]*/(?:cc|null-)\w+\.\w+")  # temporary files of GCC and Clang with random names

# The machine code of this text identifies the compiler and its flags, even behind a wrapper script. The text uses the
# C++ standard library, so that an incomplete compiler is detected.
SAMPLE = """
#include <cmath>
#include <stdexcept>
extern "C" __attribute__((visibility("default"))) double sample(const double *a, const float *b, int n)
{
    if (n < 0) throw std::invalid_argument("n");
    double sum = 0.0;
    float scaled[8] = {};
    for (int i = 0; i < n; ++i) {
        sum += a[i] * b[i] / std::sqrt(a[i]);
        scaled[i % 8] += b[i] * b[i] + 1.0f / b[i];
    }
    for (float one : scaled) sum += one;
    return sum;
}
"""

# Flags for race detection (races.h): compiled code calls a function of races.h before each memory access. The
# compiler's own race library is not linked, so the other default libraries must be named.
WATCHED = (
    "-O1",
    "-fsanitize=thread",
    "-DTSM2_HOST_RACES",
    "-fno-threadsafe-statics",
    "-nodefaultlibs",
    "-Wl,-z,defs",
)
WATCHED_LIBRARIES = ("-lstdc++", "-lm", "-lc", "-lgcc_s", "-lgcc")
# A compiler that cannot compile this text with these flags does not support race detection.
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


def compilable(cuda_text: str) -> str:
    """Return the C++ text for a CUDA text. It includes the emulation header by path, so that no -I flag is needed."""
    return f'#include "{HEADERS}/cuda_on_host.h"\n#line 1\n{host_text(cuda_text)}'


def host_toolchain() -> Toolchain:
    """Return the toolchain of the compiler in $CXX, or else of the first of c++, g++ and clang++ on PATH.

    Raise ToolMissing if there is no compiler, or if it cannot build a C++ library.
    """
    compiler, *own_words = compiler_command()
    variables = deciding((*OF_TEXTS, *OF_LINKERS))
    version, taken, made, differs = _answers((compiler, *own_words), variables, _files((compiler, *own_words)))
    return Toolchain(
        compiler=compiler,
        version=version,
        flags=(*own_words, *FLAGS, *taken),
        source_suffix=".cpp",
        suffix=".so",
        extra_digest=hashlib.sha256(f"{_extra_digest()} {made}".encode()).hexdigest(),
        wrap=compilable,
        variables=variables,
        differs=differs,
    )


def watching(toolchain: Toolchain) -> Toolchain:
    """Return the toolchain with the flags for race detection, which the compiler may not support."""
    plain = (flag for flag in toolchain.flags if flag not in ("-O1", "-O2", "-O3"))
    return replace(toolchain, flags=(*plain, *WATCHED), libraries=WATCHED_LIBRARIES)


_File = tuple[str, int, int, int]  # path, size, modification time and inode, which change if the file is edited


def _files(command: tuple[str, ...]) -> tuple[_File, ...]:
    """Return the identities of the command's programs: the compiler, and wrappers such as ccache before it."""
    found = []
    for path in filter(None, map(program_path, takewhile(lambda word: not word.startswith("-"), command))):
        facts = os.stat(path)
        found.append((os.path.realpath(path), facts.st_size, facts.st_mtime_ns, facts.st_ino))
    return tuple(found)


@cache
def _answers(
    command: tuple[str, ...], variables: Variables, files: tuple[_File, ...]
) -> tuple[str, tuple[str, ...], str, str]:
    """Run the compiler and return four facts: its version, the optional flags that it accepts, digests, script names.

    The digests change if the compiler would produce other machine code. The function caches its results. `variables`
    and `files` are parameters only so that a changed variable or file leads to a new result.
    """
    version = in_a_line(answer(*command, "--version").messages.partition("\n")[0].strip())
    taken = tuple(flag for flags in FLAGS_IF_ACCEPTED if _takes(command, flags) for flag in flags)

    def build(folder: Path, output: Path) -> list[str]:
        return [*command, *FLAGS, *taken, "-Wl,-z,defs", "-o", str(output), str(folder / "sample.cpp")]

    try:
        sample = machine_code_digest(
            shared_object({"sample.cpp": SAMPLE.encode()}, build, "sample", limit_seconds=ANSWER_SECONDS)
        )
    except Interrupted:
        raise
    except (ToolMissing, ValueError) as error:
        lines = str(error).splitlines()
        why = next((line for line in lines if re.search(r"\berror|undefined reference", line)), lines[0]).rpartition(
            " sample: "
        )[2]
        raise ToolMissing(
            f"C++ compiler {' '.join(command)} does not build a C++ library ({in_a_line(why)}): name another, such as"
            " g++, in CXX"
        ) from None
    made = f"{sample} {_commands_digest(command, taken)} {_headers_digest(command, taken)}"
    return version, taken, made, " ".join(map(script_digest, (path for path, *_ in files))).strip()


def _commands_digest(command: tuple[str, ...], taken: tuple[str, ...]) -> str:
    """Return the SHA-256 of the commands that the compiler would run (-###), and of the programs in them.

    The commands contain all options, including those that a wrapper or a response file adds.
    """
    asked = (*FLAGS, *taken, "-###", "-x", "c++", "-c", "-o", os.devnull, os.devnull)
    lines = _TEMPORARY.sub("", answer(*command, *asked, errors=True).messages).splitlines()
    digest = hashlib.sha256()
    for line in lines:
        words = _words(line) if line.startswith(" ") else []
        program = program_path(words[0]) if words else None
        if program is not None:
            with open(program, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
            digest.update(line.encode())
    with open(command[0], "rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _headers_digest(command: tuple[str, ...], taken: tuple[str, ...]) -> str:
    """Return the SHA-256 of the emulation header after preprocessing, with all system headers that it includes."""
    asked = (*FLAGS, *taken, "-E", "-P", "-x", "c++", str(HEADERS / "cuda_on_host.h"))
    return hashlib.sha256(answer(*command, *asked).messages.encode()).hexdigest()


def _takes(command: tuple[str, ...], flags: tuple[str, ...]) -> bool:
    return answer(*command, "-Werror", *flags, "-x", "c++", "-fsyntax-only", os.devnull, errors=True).is_well


def cpu_facts() -> dict[str, str]:
    """Return the fields of the first CPU in /proc/cpuinfo, such as "model name" and "flags"; {} without the file."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def cpu_name() -> str:
    """Return the CPU's model name, such as "Intel(R) Xeon(R) Processor"."""
    return in_a_line(cpu_facts().get("model name") or platform.processor() or platform.machine())


@cache
def _extra_digest() -> str:
    """Return the SHA-256 of the emulation headers, of `preprocess.py`, and of the CPU's name and features.

    The compiler uses the features because of -march=native.
    """
    facts = cpu_facts()
    features = facts.get("flags") or facts.get("Features") or platform.processor()
    digest = hashlib.sha256(f"{platform.machine()} {cpu_name()} {features}".encode())
    for file in (*sorted(HEADERS.glob("*.h")), Path(preprocess.__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()
