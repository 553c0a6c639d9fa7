"""The core: it compiles cleanly, refuses packs that are not sound, and survives hostile ones."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import tsm2_tune
from tests.test_library_choice import everything
from tsm2_tune.tuner.export.core_pack import DEVICE, HEADER, KERNEL, core_pack
from tsm2_tune.tuner.export.module import winner

CORE = Path(tsm2_tune.__file__).parent / "core"
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
FUZZ, CORPUS = Path(__file__).parent / "core_fuzz.c", Path(__file__).parent / "core_corpus.tar.xz"

pytestmark = [pytest.mark.host, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]


@pytest.fixture(scope="module")
def pack() -> bytes:
    """A pack of kernels of all types and ops, of two GPUs, with measured times."""
    (rows, sources), known = everything(2)
    return core_pack([winner(row, sources[row.trial_id], known) for row in rows], known.cards)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("core") / "core.so"
    command = ["cc", "-std=c99", "-shared", "-fPIC", "-o", str(output), *map(str, CORE.glob("*.c")), "-lm"]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(output))
    found.core_open.restype = ctypes.c_char_p
    found.core_memory_bytes.restype = ctypes.c_size_t
    return found


@pytest.mark.parametrize("file", sorted(path.name for path in CORE.glob("*.c")))
@pytest.mark.parametrize(("compiler", "standard"), [("cc", "c99"), ("c++", "c++17")])
def test_it_compiles_without_a_warning(tmp_path: Path, file: str, compiler: str, standard: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip("no C++ compiler")
    language = "c" if compiler == "cc" else "c++"
    command = [compiler, "-x", language, f"-std={standard}", *STRICT, "-O2", "-c", str(CORE / file)]
    subprocess.run([*command, "-o", str(tmp_path / "text.o")], check=True)


def fault(library: ctypes.CDLL, data: bytes) -> str | None:
    """Return what core_open says is wrong with the pack; None if it opens."""
    aligned = (ctypes.c_uint64 * (len(data) // 8 + 1))()
    ctypes.memmove(aligned, data, len(data))
    needed = library.core_memory_bytes(aligned, ctypes.c_size_t(len(data)))
    memory = (ctypes.c_uint64 * (needed // 8 + 1))()
    pack = (ctypes.c_void_p * 16)()
    found = library.core_open(aligned, ctypes.c_size_t(len(data)), memory, pack)
    return None if found is None else found.decode()


def test_a_sound_pack_opens(library: ctypes.CDLL, pack: bytes) -> None:
    assert fault(library, pack) is None


def of_kernel(member: int, value: float) -> Callable[[bytes], bytes]:
    """Return a change of a member of the pack's first kernel."""

    def changed(pack: bytes) -> bytes:
        at = HEADER.size + HEADER.unpack_from(pack)[2] * DEVICE.size
        members = list(KERNEL.unpack_from(pack, at))
        members[member] = value
        return pack[:at] + KERNEL.pack(*members) + pack[at + KERNEL.size :]

    return changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda pack: pack[:20], "no pack of this version"),
        (lambda pack: b"x" + pack[1:], "no pack of this version"),
        (lambda pack: pack[:8] + struct.pack("<I", 2) + pack[12:], "no pack of this version"),
        (lambda pack: pack + b"\0", "no pack of this version"),
        (lambda pack: pack[:-1] + b"x", "the last text does not end"),
        (of_kernel(0, 0), "shape or time is out of range"),
        (of_kernel(3, float("nan")), "shape or time is out of range"),
        (of_kernel(3, -1.0), "shape or time is out of range"),
        (of_kernel(14, 12), "tile is out of range"),
        (lambda pack: of_kernel(8, 0)(of_kernel(14, 0)(pack)), "tile is out of range"),  # of unknown occupancy
        (of_kernel(19, 1025), "threads or shared memory"),
        (of_kernel(21, 0), "launch is out of range"),
        (of_kernel(27, 9), "device is out of range"),
        (of_kernel(28, 10), "type or op is out of range"),
        (of_kernel(35, 5), "times are out of range"),
        (of_kernel(39, 1 << 30), "text is out of range"),
    ],
)
def test_a_pack_that_is_not_sound_is_refused(
    library: ctypes.CDLL, pack: bytes, change: Callable[[bytes], bytes], words: str
) -> None:
    assert words in (fault(library, change(pack)) or "")


def test_no_input_makes_it_fail(tmp_path: Path, pack: bytes) -> None:
    """Try the inputs that libFuzzer kept, an input of the sound pack, and mutations of both."""
    program, inputs = tmp_path / "core_fuzz", tmp_path / "inputs"
    with tarfile.open(CORPUS) as corpus:
        corpus.extractall(inputs, filter="data")
    (inputs / "pack").write_bytes(bytes(128) + pack)
    command = ["cc", "-std=c99", *STRICT, *SANITIZED, f"-I{CORE}", "-o", str(program), str(FUZZ)]
    subprocess.run([*command, *map(str, CORE.glob("*.c")), "-lm"], check=True)
    files = sorted(map(str, inputs.iterdir()))
    done = subprocess.run([str(program), "200", "1", *files], check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) > len(files) // 2  # most packs open, so the layout is the corpus's
