"""Winners as a C header: one constant table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tsm2_tune import __version__
from tsm2_tune.generator.problem import DTYPES, LARGEST_32_BIT_OFFSET
from tsm2_tune.generator.render import OF_LITERALS, KernelSource, filled
from tsm2_tune.tuner.stored import BestRow

# C type, member, its value, and what it is where the name does not say.
Member = tuple[str, str, Callable[[BestRow, KernelSource], str | int | float], str]
MEMBERS: tuple[Member, ...] = (
    ("const char *", "device", lambda row, source: row.device, ""),
    ("const char *", "compute_capability", lambda row, source: row.compute_capability, "empty for a host"),
    ("const char *", "driver", lambda row, source: row.driver, ""),
    ("const char *", "toolkit", lambda row, source: row.toolkit, ""),
    ("const char *", "flags", lambda row, source: row.flags, "of the compiler"),
    ("const char *", "tuned_at", lambda row, source: row.tuned_at, "ISO 8601, UTC"),
    (
        "const char *",
        "op",
        lambda row, source: row.op,
        "storage orders of A, B and C, such as nn, tn or ttt; c and j conjugate; x: B is A's matrix",
    ),
    ("const char *", "dtype", lambda row, source: row.dtype, f"one of {', '.join(DTYPES)}"),
    ("int ", "m", lambda row, source: row.m, ""),
    ("int ", "n", lambda row, source: row.n, ""),
    ("int ", "k", lambda row, source: row.k, ""),
    ("const char *", "family", lambda row, source: row.family, ""),
    ("const char *", "parameters", lambda row, source: row.parameters, "JSON"),
    ("const char *", "kernel", lambda row, source: source.kernel, "entry point"),
    ("const char *", "source_sha256", lambda row, source: row.source_digest, "of the CUDA text"),
    ("int ", "threads", lambda row, source: source.launch.threads, "per block"),
    ("int ", "rows_per_block", lambda row, source: source.launch.rows_per_block, "of the tiles of C"),
    ("int ", "columns_per_block", lambda row, source: source.launch.columns_per_block, "of the tiles of C; 0: all n"),
    ("int ", "splits", lambda row, source: source.launch.splits, "of k, or of all work; 1: no workspace"),
    ("int ", "groups", lambda row, source: source.launch.groups, "of splits that are added up first; 0: none"),
    (
        "int ",
        "persistent",
        lambda row, source: int(source.launch.persistent),
        "1: `splits` blocks are all of the grid",
    ),
    ("int ", "smem_bytes", lambda row, source: source.launch.smem_bytes, "dynamic, per block"),
    ("double ", "median_us", lambda row, source: row.median_us, ""),
    ("double ", "low_us", lambda row, source: row.low_us, ""),
    ("double ", "high_us", lambda row, source: row.high_us, ""),
    ("double ", "gbytes_per_s", lambda row, source: row.gbytes_per_s, ""),
    ("double ", "percent_of_floor", lambda row, source: row.percent_of_floor, ""),
    ("double ", "vendor_us", lambda row, source: row.vendor_us or 0.0, "of cuBLAS or cuBLASLt; 0: not measured"),
    ("int ", "vendor_right", lambda row, source: row.vendor_right or 0, "1: its answer was within the error bound"),
    ("const char *", "vendor_routine", lambda row, source: row.vendor_routine or "", ""),
    ("int ", "vendor_version", lambda row, source: row.vendor_version or 0, "of the library: 130100 is 13.1.0"),
    (
        "double ",
        "x_cublas",
        lambda row, source: row.x_cublas or 0.0,
        "vendor_us over median_us; 0: not measured, or not right",
    ),
    ("int ", "ties", lambda row, source: row.ties, "configurations within the noise, this one included"),
    ("int ", "stale", lambda row, source: row.stale, "1: of an older template or toolkit than the newest tried"),
)


def header_text(rows: Sequence[BestRow], sources: Mapping[int, KernelSource], database: str) -> str:
    """The table with the types and the launch of each kernel, but without the CUDA texts."""
    table = [[literal(value(row, sources[row.trial_id])) for _, _, value, _ in MEMBERS] for row in rows]
    members = [(c_type, name, about) for c_type, name, _, about in MEMBERS]
    values = {
        "version": __version__,
        "largest_32_bit_offset": LARGEST_32_BIT_OFFSET,
        "members": members,
        "rows": table,
    }
    return filled("header.h.jinja", values, OF_LITERALS)


def literal(value: str | int | float) -> str:
    """The value as C spells it. A string is ASCII: other bytes, quotes and ? (trigraphs) stand as octal escapes."""
    if not isinstance(value, str):
        return repr(value)
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in value.encode())
    return f'"{"".join(plain)}"'
