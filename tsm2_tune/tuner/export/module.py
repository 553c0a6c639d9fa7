"""Winners as one Python file that needs nothing of ours on a GPU: kernels, table and `gemm`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tsm2_tune import __version__
from tsm2_tune.generator.problem import DTYPES, ELEMENT_TYPES, LARGEST_32_BIT_OFFSET, PLUS_TIMES, dtype_named
from tsm2_tune.generator.render import OF_LITERALS, KernelSource, filled
from tsm2_tune.tuner.export.tables import facts
from tsm2_tune.tuner.stored import BestRow

OTHER_MATH = [dtype for dtype in DTYPES.values() if dtype.name not in ELEMENT_TYPES]
# What NumPy has for a type that it lacks.
NUMPY = {"bf16": '[("bfloat16", np.uint16)]'}
COPIED = (  # from BestRow to the module's Winner, by the same name
    "device", "compute_capability", "driver", "toolkit", "tuned_at", "dtype", "op", "m", "n", "k", "config",
    "median_us", "gbytes_per_s", "percent_of_floor",
)  # fmt: skip


def module_text(rows: Sequence[BestRow], sources: Mapping[int, KernelSource], database: str) -> str:
    """The module. Whatever is from the database stands in it as ASCII string literals, or quoted in a comment."""
    texts = {row.source_digest: sources[row.trial_id].text for row in rows}
    values = {
        "version": __version__,
        "database": json.dumps(database),
        "provenance": provenance(rows),
        "dtypes": [
            (dtype.name, NUMPY.get(dtype.name, f"np.{dtype.numpy_name}")) for dtype in map(dtype_named, ELEMENT_TYPES)
        ],
        "maths": [(dtype.math, dtype.element_name, dtype.name) for dtype in OTHER_MATH],
        "units": {d.math: (d.semiring.one, d.semiring.zero) for d in OTHER_MATH if d.semiring is not PLUS_TIMES},
        "largest_32_bit_offset": LARGEST_32_BIT_OFFSET,
        "rows": [ascii(json.dumps(winner(row, sources[row.trial_id]), allow_nan=False)) for row in rows],
        "kernels": [
            (ascii(digest), [ascii(line) for line in text.splitlines(keepends=True)] or ["''"])
            for digest, text in texts.items()
        ],
    }
    return filled("module.py.jinja", values, OF_LITERALS)


def winner(row: BestRow, source: KernelSource) -> dict[str, object]:
    """What the module's Winner holds."""
    return {name: getattr(row, name) for name in COPIED} | {
        "digest": source.digest,
        "kernel": source.kernel,
        "threads": source.launch.threads,
        "rows_per_block": source.launch.rows_per_block,
        "columns_per_block": source.launch.columns_per_block,
        "splits": source.launch.splits,
        "groups": source.launch.groups,
        "persistent": source.launch.persistent,
        "smem_bytes": source.launch.smem_bytes,
    }


def provenance(rows: Sequence[BestRow]) -> list[str]:
    """One line of JSON strings for each device, toolkit and day: json.dumps leaves no line break to end a comment."""
    lines = (f"{json.dumps(row.device)}, {json.dumps(row.tuned_at[:10])}: {json.dumps(facts(row))}" for row in rows)
    return list(dict.fromkeys(lines))
