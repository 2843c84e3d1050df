"""The README's code runs as it stands, its recipes load, and what it says about the command line is true."""

import re
from pathlib import Path

import pytest

from vanilla_transformer.cli import app
from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.recipe import load_recipe

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.integration
def test_the_python_runs_in_order(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """With a tiny model in the place of the quickstart's."""
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    (tmp_path / "runs" / "quickstart" / "final").symlink_to(trained.run / "final")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "63,045,632 parameters" in printed
    assert "100.0" in printed
    assert "|tok:13a|" in printed
    for source, target in trained.pairs.items():
        assert names["translator"](source) == [{"translation_text": target}]
    assert (tmp_path / "runs" / "lamps" / "final" / "model.safetensors").exists()


def test_the_verbs_are_those_that_exist():
    table = re.findall(r"^\| `(\w+)` \|", README, flags=re.MULTILINE)
    assert table == [command.name or command.callback.__name__ for command in app.registered_commands]


def test_commands_name_what_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)) <= targets
    for recipe in set(re.findall(r"recipes/[\w-]+\.yaml", README)):
        assert (ROOT / recipe).exists()


def test_the_recipe_for_own_text_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my-folder").mkdir()
    for name in re.findall(r"\b(?:train|dev|test)\.(?:en|de)\b", README):
        (tmp_path / "my-folder" / name).touch()
    [text] = blocks("yaml")
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("my.yaml").tokenizer.vocab_size == 8000


def test_the_error_shown_is_the_error_given(tmp_path: Path):
    recipe = tmp_path / "my.yaml"
    recipe.write_text(
        "data: {corpus: reverse, source_lang: a, target_lang: b}\n"
        "model: {d_model: 128, num_heads: 6}\n"
        "training: {max_source_token: 100}\n"
    )
    with pytest.raises(UsageError) as caught:
        load_recipe(recipe)
    assert str(caught.value) in README
