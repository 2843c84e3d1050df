"""The picture is a PNG of the asked panels, and characters without a font are named rather than drawn as boxes."""

import struct

import pytest

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.modeling.attention_figure import attention_figure, fonts_for
from vanilla_transformer.modeling.attention_maps import AttentionMap

MAP = AttentionMap("cross-attention", ["<s>", "␣a"], ["␣b", "</s>"], [[[[0.25, 0.75], [1.0, 0.0]]] * 3] * 2)


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_all_panels_or_the_one_that_is_asked_for():
    width, height = size(attention_figure(MAP))  # 3 heads by 2 layers
    one_width, one_height = size(attention_figure(MAP, layer=1, head=2))
    assert (width, height) == (pytest.approx(3 * one_width, abs=3), pytest.approx(2 * one_height, abs=3))


def test_latin_text_has_a_font():
    assert fonts_for("␣Straße é") == ["DejaVu Sans"]


def test_characters_without_a_font_are_named():
    rare = "\U000118a0"  # Warang Citi
    with pytest.raises(UserError, match=f"these characters of the sentence: {rare}. Install one"):
        fonts_for("a" + rare)
