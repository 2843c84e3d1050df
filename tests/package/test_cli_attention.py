"""`vanilla-transformer attention` writes a page, a picture or numbers, and refuses what it cannot show."""

import json

import pytest
from typer.testing import CliRunner

from vanilla_transformer.cli import app
from vanilla_transformer.configuration.errors import UsageError

pytestmark = pytest.mark.integration  # `trained` starts a process


def attention(trained, *arguments: str):
    source = next(iter(trained.pairs))
    command = ["attention", str(trained.run / "final"), "--source", source, *arguments]
    return CliRunner().invoke(app, command, catch_exceptions=True)


def test_page_picture_and_numbers(trained, tmp_path):
    for name in ("page.html", "picture.png", "numbers.json"):
        done = attention(trained, "--output", str(tmp_path / name), *(["--kind", "encoder"] if "png" in name else []))
        assert (done.exit_code, done.stdout) == (0, f"{tmp_path / name}\n")
    numbers = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    source, target = next(iter(trained.pairs.items()))
    assert (numbers["source"], numbers["target"]) == (source, target)
    assert numbers["written"] == [*target.split(), "</s>"]
    assert all(abs(sum(row) - 1) < 1e-5 for row in numbers["maps"][2]["weights"][0][0])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert numbers["source"] in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--output", "page.txt"], "--output page.txt: the name must end in .html, .png or .json"),
        (["--output", "p.png", "--kind", "middle"], "--kind middle: choose from encoder, decoder, cross"),
        (["--output", "p.png", "--layer", "9"], "--layer 9: the model has 1"),
    ],
)
def test_wrong_options_are_named(trained, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = attention(trained, *arguments)
    assert isinstance(done.exception, UsageError) and str(done.exception) == message
    assert list(tmp_path.iterdir()) == []
