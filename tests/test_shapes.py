"""The spelling of shapes."""

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.shapes import MOST_SHAPES, parse_shapes


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("20480x16x20480", [(20480, 16, 20480)]),
        ("20480x16x20480,1e7x8x8", [(20480, 16, 20480), (10**7, 8, 8)]),
        ("1.5e3X2x7", [(1500, 2, 7)]),
        ("10:30:10x2x5", [(10, 2, 5), (20, 2, 5), (30, 2, 5)]),
        ("10:35:10x2x5", [(10, 2, 5), (20, 2, 5), (30, 2, 5)]),
        ("9x2:16:*2x5", [(9, 2, 5), (9, 4, 5), (9, 8, 5), (9, 16, 5)]),
        ("9x2/4x5/6", [(9, 2, 5), (9, 2, 6), (9, 4, 5), (9, 4, 6)]),
        ("10:20:10x8xm", [(10, 8, 10), (20, 8, 20)]),
        ("1e7xkx8/16", [(10**7, 8, 8), (10**7, 16, 16)]),
        ("4x4x4, 4x4x4,", [(4, 4, 4)]),
    ],
)
def test_spellings(text: str, shapes: list[tuple[int, int, int]]) -> None:
    assert list(parse_shapes(text)) == shapes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("/".join(["1:10000:1"] * 8000) + "x1x1", "makes more than"),
        ("", "no shape"),
        (",", "no shape"),
        ("8x8", "expected MxNxK"),
        ("8x8x8x8", "expected MxNxK"),
        ("0x8x8", "at least 1"),
        ("-1x8x8", "at least 1"),
        ("1.5x8x8", "no whole number"),
        ("1e400x8x8", "no whole number"),
        ("1e99x8x8", "at most"),
        ("axbxc", "no whole number"),
        ("\uff18x8x8", "'\uff18' is no whole number"),
        ("8x8x8:1\uff16:8", "'1\uff16' is no whole number"),
        ("10:30x10x10", "a range is FROM:TO:STEP"),
        ("9" * 5000 + "x8x8", "a number of 5000 characters"),
        ("kx8xm", "a letter must refer"),
        ("mx8x8", "refer to itself"),
        ("30:10:10x8x8", "empty or endless"),
        ("10:30:0x8x8", "at least 1"),
        ("2:8:*1x8x8", "empty or endless"),
        ("1:100000:1x8x8", f"more than {MOST_SHAPES}"),
        ("1:1000:1x1:1000:1x8", f"more than {MOST_SHAPES}"),
    ],
)
def test_bad_spellings_say_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_shapes(text)
