"""Tests of the values that templates print: no name, number or word leaves a comment or ends a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cases import F32
from tsm2_tune.errors import InputError
from tsm2_tune.generator import render as rendering
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import DTYPES
from tsm2_tune.generator.render import OF_KERNELS, OF_LITERALS, environment, filled, render, support_source

V3 = Tsm2Config("v3", 128, 8, 4)
LINE_ENDS = ("a\nb", "a\rb", "a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "b\n")
CONTROLS = ("\x00", "\x1b[2J", "\x7f", "\x9b2J", "\u202e", "\ud800", "é")
MARKS = ("\\", "??/", "*/", "/*", "//", '"', "#", "{", "}", "`", "$", "@", "!")


@pytest.fixture(autouse=True)
def _nothing_at_hand() -> None:
    """No text that was made before takes the place of one that a test asks for."""
    render.cache_clear()
    rendering._text.cache_clear()


def test_a_template_knows_nothing_but_what_it_is_given() -> None:
    assert environment().globals.keys() == {"range", "dict", "lipsum", "cycler", "joiner", "namespace"}


@pytest.mark.parametrize("text", [*LINE_ENDS, *CONTROLS, *MARKS])
def test_a_hostile_value_is_refused_wherever_it_stands(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be inserted into"):
        render(F32, replace(V3, version=text))
    with pytest.raises(InputError, match="cannot be inserted into"):
        render(F32, replace(V3, threads=text))  # type: ignore[arg-type]
    monkeypatch.setitem(DTYPES, "f32", replace(DTYPES["f32"], c_type=text))
    with pytest.raises(InputError, match="cannot be inserted into"):
        render(F32, V3)
    with pytest.raises(InputError, match="cannot be inserted into"):
        support_source()


@pytest.mark.parametrize("text", [*LINE_ENDS, *CONTROLS])
@pytest.mark.parametrize("template", ["library_pack.c.jinja", "module.py.jinja"])
def test_literals_are_one_line_of_ascii(template: str, text: str) -> None:
    for value in (text, [("a", [text])], {"a": {"b": text}}):
        with pytest.raises(InputError, match="cannot be inserted into"):
            filled(template, {"rows": value}, OF_LITERALS)


def test_another_object_is_not_printed() -> None:
    with pytest.raises(TypeError, match="accepts no value of type object"):
        filled("support.cu.jinja", {"dtypes": object()}, OF_KERNELS)
