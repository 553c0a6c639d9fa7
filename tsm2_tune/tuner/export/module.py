"""Export of the fastest kernels as one Python file with all it needs. On a GPU it does not import tsm2_tune."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import sysconfig
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from tsm2_tune import __version__
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.render import OF_LITERALS, filled
from tsm2_tune.runtime.choice.core import platform_name
from tsm2_tune.runtime.module_data import Place
from tsm2_tune.tuner.compile.core_library import core_binary, core_texts
from tsm2_tune.tuner.compile.shared_objects import c_library, c_texts, compiler_command
from tsm2_tune.tuner.export.bundle import runtime_parts
from tsm2_tune.tuner.export.cubins import Cubins, Unverified, verified_cubins
from tsm2_tune.tuner.export.gathered import Kernel, gathered
from tsm2_tune.tuner.export.tables import facts
from tsm2_tune.tuner.packs.core_pack import DeviceRates, core_pack
from tsm2_tune.tuner.packs.gains import with_gain_errors
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store

PUBLIC = (
    "CUBINS", "KERNELS", "WINNERS", "Match", "Vendor", "Winner",
    "choice", "gemm", "install", "installed", "launcher", "load", "match", "plan", "remember",
    "target_of_xla", "text_of", "uninstall",
)  # fmt: skip
# dataclasses look up a class's module in sys.modules, but some loaders do not add the module there.
FOUND_BY_DATACLASSES = """
_is_unlisted = __name__ not in sys.modules
if _is_unlisted:
    sys.modules[__name__] = type(sys)(__name__)
"""
LAUNCHER_SOURCES = resources.files("tsm2_tune.tuner.export") / "launcher"
LINE_CHARACTERS = 116  # per line of embedded data
PRESET = 3  # compression level of xz: 6 takes four times as long and saves 10 %
# Bytes of xz's dictionary. It holds the data, if these are not more: a larger one takes longer and saves nothing.
LEAST_DICTIONARY, MOST_DICTIONARY = 1 << 12, 1 << 20
TEXTS_PER_BLOCK = 32  # texts are alike: together they take a tenth of the bytes


def exported_module(
    store: Store,
    rows: Sequence[BestRow],
    *,
    binaries: bool = False,
    launcher: bytes | None = None,
    unverified: Unverified = Unverified.REFUSED,
    tell: Callable[[str], None] = lambda sentence: None,
) -> str:
    """Return the text of an exported Python module with the kernels `rows`, the fastest one of each shape.

    With `binaries` it contains cubins. `tell` is called with the reason for each missing cubin, and `unverified` is
    the policy for cubins that cannot be verified on this machine. Raise StoreError if a stored kernel differs from
    the kernel that this program generates.
    """
    kernels, rates = gathered(store, rows, store.winning(rows))
    cubins, missing = Cubins(), list[str]()
    if binaries:
        try:
            cubins, missing = verified_cubins(store, kernels, unverified, tell)
        except ToolMissing as error:
            missing = [str(error)]
    for why in missing:
        tell(f"no binary: {why.rstrip('.')}; the module compiles at the first call")
    return module_text(kernels, rates, str(store.path), cubins, launcher)


def launcher_binary() -> bytes:
    """Compile a module's launcher, a CPython extension in C that chooses and launches kernels. Return its bytes.

    It runs on this machine with CPython 3.11 or later. Raise ToolMissing if a C compiler or Python.h is missing.
    """
    compiler_command()  # raises ToolMissing
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise ToolMissing(
            f"no Python.h in {headers}: install Python's development files (python3-dev) or export without --launcher"
        )
    # Without -z defs, because the running interpreter provides Python's functions.
    return c_library({**core_texts(), **c_texts(LAUNCHER_SOURCES)}, "launcher", options=("-isystem", str(headers)))


def module_text(
    kernels: Sequence[Kernel],
    rates: Mapping[str, DeviceRates],
    database: str,
    cubins: Cubins | None = None,
    launcher: bytes | None = None,  # shared object, compiled on this machine
) -> str:
    """Return the text of an exported Python module with these kernels. `rates` are those of their devices by name.

    Texts from the database, which may be malicious, are written only as ASCII string literals or as JSON strings in
    comments.
    """
    cubins = cubins or {}
    texts = {one.row.source_digest: one.source.text.encode() for one in kernels}
    architectures = sorted({architecture for _, _, architecture in cubins})
    blocks = _Blocks()
    for _, several in groupby(enumerate(texts), lambda one: one[0] // TEXTS_PER_BLOCK):
        blocks.add({name: texts[name] for _, name in several})
    for _, keys in groupby(cubins, lambda key: key[0]):
        blocks.add({key: cubins[key] for key in keys})
    measured = [one.measured for one in kernels]
    pack, core = core_pack(with_gain_errors(measured, rates), rates), core_binary()
    core_text = json.dumps({name: text.decode() for name, text in core_texts().items()}).encode()
    head = filled(
        "module_head.py.jinja",
        {
            "version": __version__,
            "database": json.dumps(database),
            "provenance": provenance([one.row for one in kernels]),
            "architectures": ", ".join(architectures),
            "has_host_kernels": any(one.winner.on_host for one in measured),
        },
        OF_LITERALS,
    )
    data = filled(
        "module.py.jinja",
        {
            "rows": json_lines([asdict(one.winner) for one in measured]),
            "kernels": json_lines([(name, *blocks.places[name]) for name in texts]),
            "cubins": json_lines([(*key, *blocks.places[key]) for key in cubins]),
            "blocks": blocks.packed,
            "pack": (_digest(pack), packed(pack)),
            "core": (ascii(platform_name()), _digest(core), packed(core)),
            "core_text": (_digest(core_text), packed(core_text)),
            "launcher": None if launcher is None else (ascii(platform_name()), _digest(launcher), packed(launcher)),
        },
        OF_LITERALS,
    )
    imports, body = runtime_parts()
    public = f"__all__ = [{', '.join(json.dumps(name) for name in PUBLIC)}]"
    text = f"{head}{imports}\n\n{public}\n{FOUND_BY_DATACLASSES}\n\n{body}\n\n\n{data}"
    return f"{text}\nIDENTITY = {_digest(text.encode())}\n"


def json_lines(values: Sequence[Any]) -> list[str]:
    """Return the lines of a Python literal, a JSON array with a value on each line.

    Python compiles a long literal and parses its JSON seven times as fast as it compiles a table of tuples.
    """
    begins = ["[", *"," * (len(values) - 1)]
    lines = [begin + json.dumps(value, allow_nan=False) for begin, value in zip(begins, values, strict=False)]
    return [ascii(line) for line in (*lines, "]" if lines else "[]")]


def packed(data: bytes) -> list[str]:
    """Compress the data and encode it in base 64. Return the lines of one triple-quoted Python literal.

    Python compiles one long literal faster than many short ones, and decodes base 64 much faster than base 85.
    """
    dictionary_bytes = min(max(1 << (len(data) - 1).bit_length(), LEAST_DICTIONARY), MOST_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": PRESET, "dict_size": dictionary_bytes}]
    compressed = lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_NONE, filters=filters)  # the digest is the check
    text = base64.b64encode(compressed).decode()
    return ['"""', *(text[at : at + LINE_CHARACTERS] for at in range(0, len(text), LINE_CHARACTERS)), '"""']


class _Blocks:
    """Texts and binaries that are compressed together, and the place of each (`module_data.Place`)."""

    def __init__(self) -> None:
        self.packed: list[list[str]] = []
        self.places: dict[Hashable, Place] = {}

    def add(self, parts: Mapping[Any, bytes]) -> None:
        """Add a block of these parts."""
        start = 0
        for key, data in parts.items():
            self.places[key] = (hashlib.sha256(data).hexdigest(), len(self.packed), start, start + len(data))
            start += len(data)
        self.packed.append(packed(b"".join(parts.values())))


def _digest(binary: bytes) -> str:
    return ascii(hashlib.sha256(binary).hexdigest())


def provenance(rows: Sequence[BestRow]) -> list[str]:
    """Return one comment line for each device, toolkit and day. JSON strings exclude line breaks from the comment."""
    lines = (f"{json.dumps(row.device)}, {json.dumps(row.tuned_at[:10])}: {json.dumps(facts(row))}" for row in rows)
    return list(dict.fromkeys(lines))
