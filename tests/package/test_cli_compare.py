"""`vanilla-transformer compare` trains every rung, writes a report, goes on where it was stopped, refuses mistakes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vanilla_transformer.cli import app
from vanilla_transformer.training.ladder import corpus_runs
from vanilla_transformer.training.ladder.systems import SYSTEMS

LADDER = """
ladder: {{systems: [{systems}], threads: 1}}
translation:
  corpora:
    letters:
      data: {{corpus: corpus, source_lang: up, target_lang: low, train: "train.{{lang}}", dev: "dev.{{lang}}",
              test: "test.{{lang}}"}}
      tokenizer: {{type: words, vocab_size: 60}}
  transformer: {{d_model: 16, d_ff: 32, num_heads: 2, num_encoder_layers: 1, num_decoder_layers: 1}}
  parameters: {parameters}
  training: {{max_steps: {steps}, max_source_tokens: 100, max_target_tokens: 100, learning_rate: 0.01,
              warmup_steps: 4, eval_every: 4, log_every: 2, save_every: 4, keep_last: 1, average_last: 1}}
  generation: {{num_beams: 1}}
  evaluation: {{metrics: [bleu, chrf]}}
  seeds: [{seeds}]
  target_bleu: [0]
  learning_rates: {{rnn: 0.005}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of letters, and beside it a ladder file."""
    (tmp_path / "corpus").mkdir()
    letters = "abcdefghijklmnopqrst"
    for split, start, count in (("train", 0, 60), ("dev", 60, 6), ("test", 70, 8)):
        lines = [
            " ".join(letters[(i * i + j * (1 + i % 7)) % 20] for j in range(4 + i % 6))
            for i in range(start, start + count)
        ]
        (tmp_path / "corpus" / f"{split}.up").write_text("".join(f"{line.upper()}\n" for line in lines))
        (tmp_path / "corpus" / f"{split}.low").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def compare(folder: Path, *options: str, systems=SYSTEMS, parameters=20_000, steps=8, seeds="1"):
    text = LADDER.format(systems=", ".join(systems), parameters=parameters, steps=steps, seeds=seeds)
    (folder / "ladder.yaml").write_text(text)
    command = ["compare", str(folder / "ladder.yaml"), "--output-dir", str(folder / "out"), *options]
    return CliRunner().invoke(app, command, catch_exceptions=True)


@pytest.mark.integration
def test_the_whole_ladder_then_nothing_twice(folder: Path, monkeypatch: pytest.MonkeyPatch):
    done = compare(folder)
    assert (done.exit_code, done.stdout) == (0, f"{folder / 'out' / 'ladder.html'}\n"), done.exception
    cells = json.loads((folder / "out" / "translation.json").read_text())["rows"]
    assert [row["system"] for row in cells.values()] == list(SYSTEMS)
    for row in cells.values():
        run = folder / "out" / row["run"]
        assert abs(row["parameters"] - 20_000) <= 1000
        # The peak, that of row["system"], is reached after warmup_steps and logged.
        assert row["learning_rate"] == (0.005 if row["system"] == "rnn" else 0.01)
        assert row["updates"] == 8 and [one["step"] for one in row["validations"]] == [4, 8]
        assert sum(bucket["sentences"] for bucket in row["buckets"]) == 8
        assert row["seconds_to_bleu"]["0"] == row["validations"][0]["seconds"] > 0
        tested = json.loads((run / "results" / "test.json").read_text())["scores"]
        assert row["scores"]["bleu"]["score"] == tested["bleu"]["score"]
        assert (run / "final" / "model.safetensors").exists() and (run / "manifest.json").exists()
        assert not (run / "checkpoints").exists()
    # One vocabulary for all.
    vocabularies = {(folder / "out" / row["run"] / "final" / "tokenizer.json").read_bytes() for row in cells.values()}
    assert len(vocabularies) == 1
    assert len(list((folder / "out" / "plots").glob("*.png"))) == 2

    trained: list[Path] = []
    train = corpus_runs.train
    monkeypatch.setattr(
        corpus_runs, "train", lambda recipe, run, **more: trained.append(run) or train(recipe, run, **more)
    )
    again = compare(folder, "--json")
    assert again.exit_code == 0 and not trained
    [scores, *_] = json.loads(again.stdout)["translation"]["tables"]
    assert [line[0] for line in scores["rows"]] == list(SYSTEMS)
    # One more seed trains that seed alone; a lost cell comes back from its finished run.
    path = folder / "out" / "translation.json"
    content = json.loads(path.read_text())
    lost = content["rows"].pop("letters/gru/seed 1")
    path.write_text(json.dumps(content))
    assert compare(folder, systems=["gru"], seeds="1, 2").exit_code == 0
    assert [run.name for run in trained] == ["gru-seed1", "gru-seed2"]
    rows = json.loads(path.read_text())["rows"]
    assert rows["letters/gru/seed 1"]["scores"] == lost["scores"]
    assert rows["letters/gru/seed 2"]["validations"] != lost["validations"]
    # Other settings may not mix with these.
    changed = compare(folder, steps=12)
    assert changed.exit_code == 1 and changed.exception.exit_code == 2
    said = str(changed.exception)
    assert "training.max_steps = 12: the rows in the file have 8" in said and "give a new --output-dir" in said


def test_mistakes_are_usage_errors(folder: Path, cli):
    def said(*arguments: object) -> str:
        ended = cli("compare", *arguments, "--output-dir", folder / "out")
        assert (ended.code, ended.out) == (2, "")
        assert "Traceback" not in ended.err
        return ended.err

    assert said(folder / "none.yaml") == f"recipe {folder}/none.yaml: no such file\n"
    (folder / "ladder.yaml").write_text("translatoin: {}")
    assert "translatoin: unknown section; did you mean translation?" in said(folder / "ladder.yaml")
    (folder / "ladder.yaml").write_text("translation: {seeds: 3}")
    told = said(folder / "ladder.yaml")
    assert "translation.corpora: missing" in told and "translation.seeds = 3: must be a list of" in told
    (folder / "ladder.yaml").write_text(LADDER.format(systems="gru", parameters=100, steps=8, seeds="1"))
    assert "gru: no width gives 100 parameters within 5%" in said(folder / "ladder.yaml")
    assert cli("compare", folder / "ladder.yaml").code == 2  # no --output-dir
