"""The structure figure is what its script draws: both languages, well-formed, every label, nothing outside."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_structure", ROOT / "docs" / "figures" / "make_structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_committed_file_is_what_the_script_draws(script, language):
    assert (script.FOLDER / script.FILES[language]).read_bytes() == script.figure(language).encode()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_label_is_text_in_a_well_formed_file(script, language):
    tree = ElementTree.fromstring(script.figure(language))
    found = ["".join(element.itertext()) for element in tree.iter(f"{SVG}text")]
    for name, label in script.LABELS[language].items():
        if name not in ("title", "about"):
            for line in label.split("|"):
                assert re.sub(r"_(\w+)", r"\1", line) in found, name
    assert tree.findtext(f"{SVG}title") == script.LABELS[language]["title"]
    assert not list(tree.iter(f"{SVG}image"))


def test_both_languages_have_the_same_labels(script):
    assert script.LABELS["en"].keys() == script.LABELS["zh"].keys()


def test_every_box_lies_on_the_paper_and_has_a_colour_for_light_and_dark(script):
    tree = ElementTree.fromstring(script.figure("en"))
    for box in tree.iter(f"{SVG}rect"):
        left, top = float(box.get("x", 0)), float(box.get("y", 0))
        assert left >= 0 and left + float(box.get("width")) <= script.WIDTH
        assert top >= 0 and top + float(box.get("height")) <= script.HEIGHT
    kinds = {box.get("class").split()[-1] for box in tree.iter(f"{SVG}rect") if box.get("class").startswith("box")}
    assert kinds == script.FILLS.keys()
    light, dark = tree.findtext(f"{SVG}style").split("prefers-color-scheme: dark")
    for kind, (in_light, in_dark) in script.FILLS.items():
        assert f".{kind} {{ fill: {in_light}; }}" in light and f".{kind} {{ fill: {in_dark}; }}" in dark


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_from_every_fill(script):
    # WCAG 2.1's contrast of normal text, 4.5 at least
    for shade in (0, 1):
        for fill in [*script.FILLS.values(), script.PAPER]:
            dark, light = sorted([luminance(fill[shade]), luminance(script.INK[shade])])
            assert (light + 0.05) / (dark + 0.05) >= 4.5
