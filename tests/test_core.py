"""The core: it compiles cleanly, refuses packs that are not sound, and survives hostile ones."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.packs_of_everything import LAUNCHES, everything, kernels_of_everything
from tests.predicted import GPU, core, measured, product
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice import core as core_calls
from tsm2_tune.runtime.choice.launch import ONE_EACH, SHARED
from tsm2_tune.runtime.elements import DTYPES
from tsm2_tune.tuner.packs.core_pack import DeviceRecord, HeaderRecord, KernelRecord, TimeRecord, core_pack

PACKAGE = Path(tsm2_tune.__file__).parent
CORE = PACKAGE / "core"
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
FUZZ, CORPUS = Path(__file__).parent / "core_fuzz.c", Path(__file__).parent / "core_corpus.tar.xz"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]


@pytest.fixture(scope="module")
def pack() -> bytes:
    """A pack of kernels of all types and ops, of two GPUs, with measured times."""
    return core_pack(kernels_of_everything(2), everything(2)[1])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("core") / "core.so"
    command = ["cc", "-std=c99", "-shared", "-fPIC", "-o", str(output), *map(str, CORE.glob("*.c")), "-lm"]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(output))
    found.core_open.restype = ctypes.c_char_p
    found.core_memory_bytes.restype = ctypes.c_size_t
    return found


@pytest.mark.parametrize(("compiler", "language", "standard"), [("cc", "c", "c99"), ("c++", "c++", "c++17")])
def test_it_compiles_without_a_warning(tmp_path: Path, compiler: str, language: str, standard: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip("no C++ compiler")
    files = map(str, CORE.glob("*.c"))
    subprocess.run(
        [compiler, "-x", language, f"-std={standard}", *STRICT, "-O2", "-c", *files], check=True, cwd=tmp_path
    )


def fault(library: ctypes.CDLL, data: bytes) -> str | None:
    """Return what core_open says is wrong with the pack; None if it opens."""
    aligned = (ctypes.c_uint64 * (len(data) // 8 + 1))()
    ctypes.memmove(aligned, data, len(data))
    needed = library.core_memory_bytes(aligned, ctypes.c_size_t(len(data)))
    memory = (ctypes.c_uint64 * (needed // 8 + 1))()
    pack = (ctypes.c_void_p * 16)()
    found = library.core_open(aligned, ctypes.c_size_t(len(data)), memory, pack)
    return None if found is None else found.decode()


def changed(pack: bytes, **members: float) -> bytes:
    """The pack with other members of its first kernel."""
    data, devices = bytearray(pack), HeaderRecord.from_buffer_copy(pack).device_count
    at = ctypes.sizeof(HeaderRecord) + devices * ctypes.sizeof(DeviceRecord)
    for member, value in members.items():
        setattr(KernelRecord.from_buffer(data, at), member, value)
    return bytes(data)


def with_devices(pack: bytes, devices: list[int]) -> bytes:
    """The pack with these of its devices instead of its own."""
    header, size, at = HeaderRecord.from_buffer_copy(pack), ctypes.sizeof(DeviceRecord), ctypes.sizeof(HeaderRecord)
    records = [pack[at + size * one :][:size] for one in devices]
    rest = pack[at + size * header.device_count :]
    header.device_count = len(devices)
    return bytes(header) + b"".join(records) + rest


SHARING = {"batched": SHARED, "batch": 9, "is_persistent": 1, "has_workspace": 0, "m": 8, "n": 8, "k": 8}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda pack: pack[:20], "no pack of this version"),
        (lambda pack: b"x" + pack[1:], "no pack of this version"),
        (lambda pack: pack[:8] + struct.pack("<I", 2) + pack[12:], "no pack of this version"),
        (lambda pack: pack + b"\0", "no pack of this version"),
        (lambda pack: pack[:-1] + b"x", "the last text does not end"),
        (lambda pack: with_devices(pack, [0, 0]), "two devices have one name"),
        (lambda pack: with_devices(pack, [0] * 65), "too many devices"),
        *((change, f"{words} out of range") for change, words in (
            ({"m": 0}, "kernel's shape is"), ({"us": float("nan")}, "kernel's time is"),
            ({"us": -1.0}, "kernel's time is"), ({"vector_bytes": 12}, "vectors are"),
            ({"c_vector_bytes": 12}, "vectors of C are"), ({"smem_bytes": (227 << 10) + 1}, "shared memory is"),
            ({"vector_bytes": 0, "resident": 0}, "vectors are"),  # of unknown occupancy
            ({"threads": 1025}, "number of threads is"), ({"rows_per_block": 0}, "launch is"),
            ({"device": 9}, "device is"), ({"type": 10}, "type is"), ({"first_time": 5}, "times are"),
            ({"op": 1 << 30}, "text is"), ({"batched": 3}, "batch is"), ({"batched": -1}, "batch is"),
            ({"batch": 0}, "batch is"), ({"batch": 2}, "batch is"),  # of a kernel of single products
            ({"batched": ONE_EACH}, "batch is"),  # of one product
            ({"batched": ONE_EACH, "batch": 1 << 16}, "batch is"),  # beyond the grid
            ({"batched": SHARED, "batch": 1 << 31}, "batch is"),
            *((change, "shared memory of a kernel of batches is") for change in (
                {"stages": 1},  # of a single product
                *(SHARING | of_smem for of_smem in (
                    {"smem_bytes": 8192},  # without stages
                    {"smem_bytes": 227 << 10, "stages": 17}, {"smem_bytes": 64, "stages": 1},
                    {"smem_bytes": 8192, "stages": 1, "is_padded": -1}))))
        )),
        ({"batched": SHARED, "batch": 9}, "is not persistent, or has a workspace"),
        ({"batched": ONE_EACH, "batch": 9}, "single products has a time of a batch, or the opposite"),
    ],
)  # fmt: skip
def test_a_pack_that_is_not_sound_is_refused(
    library: ctypes.CDLL, pack: bytes, change: Callable[[bytes], bytes] | dict[str, float], words: str
) -> None:
    assert fault(library, pack) is None
    damaged = changed(pack, **change) if isinstance(change, dict) else change(pack)
    assert words in (fault(library, damaged) or "")


def test_no_input_makes_it_fail(tmp_path: Path, pack: bytes) -> None:
    """Try the inputs that libFuzzer kept, an input of the sound pack, and mutations of both."""
    program, inputs = tmp_path / "core_fuzz", tmp_path / "inputs"
    with tarfile.open(CORPUS) as corpus:
        corpus.extractall(inputs, filter="data")
    (inputs / "pack").write_bytes(bytes(136) + pack)
    command = ["cc", "-std=c99", *STRICT, *SANITIZED, f"-I{CORE}", "-o", str(program), str(FUZZ)]
    subprocess.run([*command, *map(str, CORE.glob("*.c")), "-lm"], check=True)
    files = sorted(map(str, inputs.iterdir()))
    done = subprocess.run([str(program), "200", "1", *files], check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) > len(files) // 2  # most packs open, so the layout is the corpus's


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_numbers_that_the_core_refuses_are_no_pack() -> None:
    first = kernels_of_everything(2)[0]
    tile_m = [{"tile_m": one} for one in (0, 1 << 40, (1 << 40) + 8, 8.5)]
    for change in (*tile_m, {"without_vectors": float("nan")}):
        wrong = replace(first, tiling=replace(first.tiling, **change))  # type: ignore[type-var]
        said = f"times of {wrong.winner.config} for .* cannot be predicted, because the database is damaged: "
        with pytest.raises(InputError, match=said):
            core_pack([first, wrong], everything(2)[1])


# Launches, which Python's Launch computes too: the generator needs them without a compiler


@pytest.mark.usefixtures("toolchain", "session_cache")
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("is_predicted", [False, True])
def test_grid_and_workspace_are_those_of_launch(launch: Launch, is_predicted: bool) -> None:
    tile_m = max(launch.rows_per_block // 8, 1)
    tiling = Tiling(4, tile_m, launch.columns_per_block, 4, 0, 1.1, k_of_resident_b=256)
    one = core(replace(measured((tiling, launch), (64, 8, 32), 10.0), tiling=tiling if is_predicted else None))
    for m, n, k in ((64, 8, 32), (1, 1, 1), (256, 5, 3), (257, 17, 400), (10**5, 33, 7), (10**7, 64, 10**4)):
        found = one.choose(product((m, n, k)), GPU)
        own = launch.with_splits(found.splits) if launch.has_workspace else launch
        own = replace(own, rows_per_block=found.rows_per_block)
        assert is_predicted or own == launch
        assert (found.grid_x, found.grid_y) == own.grid(m, n)
        assert found.partials_bytes == 4 * own.partial_elements(m, n)
        assert found.counters_bytes == 4 * own.counters(m, n)


# Records that C and Python share


def test_types_are_numbered_alike() -> None:
    header, library = (PACKAGE / name for name in ("core/core.h", "tuner/export/c/tsm2.h"))
    in_core = re.search(r"enum core_type \{(.*?)CORE_TYPES", header.read_text(encoding="utf-8"), re.DOTALL)
    assert in_core is not None
    assert re.findall(r"CORE_(\w+),", in_core[1]) == [name.upper() for name in core_calls.TYPES_IN_C]
    named = ", ".join(f"TSM2_{name.upper()} = {number}" for number, name in enumerate(DTYPES))
    assert f"typedef enum {{ {named} }} tsm2_type;" in library.read_text(encoding="utf-8")


ELEMENTS = {  # fields of ctypes that are elements of arrays in C
    **{f"ld{x}_{order}": f"ld[{i}][{j}]" for i, x in enumerate("abc") for j, order in enumerate(("columns", "rows"))},
    **{f"{name}_{x}": f"{name}[{i}]" for name, letters in (("grid", "xyz"), ("conjugates", "ab"))
       for i, x in enumerate(letters)},
    **{f"measured_{x}": f"measured[{i}]" for i, x in enumerate("mnk")},
    **{f"ld{x}": f"ld[{i}]" for i, x in enumerate("abc")},
    **{f"stride_{x}": f"strides[{i}]" for i, x in enumerate("abc")},
}  # fmt: skip
EXTENTS = {x: f"extents[{i}]" for i, x in enumerate("mnk")}


class CoreProduct(ctypes.Structure):
    """struct core_product. A leading dimension is 0 if the matrix does not have the storage order."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k")),
        *((f"ld{x}_{order}", ctypes.c_int64) for x in "abc" for order in ("columns", "rows")),
        *((f"stride_{x}", ctypes.c_int64) for x in "abc"),
        ("batch_count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("type", "conjugates_a", "conjugates_b", "is_gram", "makes_c")),
        ("leaves_out_shape", ctypes.c_int32),
    )


@pytest.mark.parametrize(
    ("record", "name", "elements", "packed"),
    [
        (CoreProduct, "core_product", ELEMENTS, core_calls.PRODUCT),
        (core_calls.CoreChoice, "core_choice", ELEMENTS | EXTENTS, core_calls.CHOICE),
        (core_calls.CoreTime, "core_time", {}, None),
        (HeaderRecord, "core_header", {}, None),
        (DeviceRecord, "core_device", {}, None),
        (core_calls.CoreRates, "core_rates", {}, None),
        (KernelRecord, "core_kernel", {one[0]: f"rates.{one[0]}" for one in core_calls.CoreRates._fields_}, None),
        (TimeRecord, "core_time", {}, None),
        (core_calls._OpenPack, "core_pack", None, None),  # Python does not read its members
    ],
)
def test_records_have_the_layout_of_c(
    tmp_path: Path, record: type[ctypes.Structure], name: str, elements: dict[str, str] | None, packed: Any
) -> None:
    facts = [f"sizeof(struct {name}) == {ctypes.sizeof(record)}"]
    for field, kind in ((one[0], one[1]) for one in record._fields_ if elements is not None):
        member, at = (elements or {}).get(field, field), getattr(record, field)
        is_float = int(kind is ctypes.c_double)
        facts.append(f"offsetof(struct {name}, {member}) == {at.offset}")
        facts.append(f"sizeof(((struct {name} *)0)->{member}) == {at.size}")
        facts.append(f"_Generic(((struct {name} *)0)->{member}, double: 1, default: 0) == {is_float}")
    text = "".join(f'_Static_assert({fact}, "");\n' for fact in facts)
    (tmp_path / "layout.c").write_text(f'#include "core.h"\n{text}', encoding="utf-8")
    subprocess.run(["cc", "-std=c11", f"-I{CORE}", "-fsyntax-only", str(tmp_path / "layout.c")], check=True)
    if packed:
        fields = tuple(range(len(record._fields_)))
        assert packed.unpack(bytes(record(*fields))) == fields
