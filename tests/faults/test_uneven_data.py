"""Corpora too small to be shared out evenly: two processes do with them what one does, and none waits for ever."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import Session, settings
from launching import rows
from tiny_run import RECIPE

from vanilla_transformer.training.evaluation import evaluate_model

pytestmark = pytest.mark.integration

SHORT = ("training.max_steps=7", "training.save_every=3", "training.eval_every=3", "training.average_last=1")


def corpus(folder: Path, **counts: int) -> Path:
    """So many pairs for each split, no two of them equal, each one a word longer than the one before."""
    folder.mkdir()
    first = 0
    for split, count in counts.items():
        pairs = [[f"w{first + index + word}" for word in range(index + 2)] for index in range(count)]
        lines = [f"{' '.join(words)}\t{' '.join(reversed(words))}\n" for words in pairs]
        (folder / f"{split}.tsv").write_text("".join(lines))
        first += 3 * count
    return folder


def run(folder: Path, pairs: Path, processes: int, accumulation: int) -> Path:
    recipe = folder.with_name(f"{folder.name}.yaml")
    recipe.write_text(RECIPE.replace("CORPUS", str(pairs)))
    options = settings(*SHORT, "model.dropout=0", f"training.gradient_accumulation_steps={accumulation}")
    with Session(recipe, folder, *options, processes=processes) as session:
        assert session.exit_codes(timeout=60) == [0] * processes, session.errors()
    return folder


# One example only: fewer than processes, an epoch smaller than a batch. And three in four parts, three dev pairs on two
# processes, five test pairs.
@pytest.mark.parametrize(
    "counts", ({"train": 1, "dev": 1, "test": 1}, {"train": 3, "dev": 3, "test": 5}), ids=("one", "three")
)
def test_two_processes_train_validate_and_test_on_a_handful_of_pairs_as_one_does(tmp_path, counts):
    pairs = corpus(tmp_path / "pairs", **counts)
    one, two = run(tmp_path / "one", pairs, 1, 4), run(tmp_path / "two", pairs, 2, 2)
    for row, expected in zip(rows(two), rows(one), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    assert [row["epoch"] for row in rows(two)] == list(range(1, 8))  # every epoch is one update
    for folder in (one, two):
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["epoch_plan"]["planned"] == counts["train"]
        tokens = 7 * sum(index + 3 for index in range(counts["train"]))  # 7 epochs, each pair once, with its </s>
        assert manifest["tokens_seen"] == {"source": tokens, "target": tokens}
    results = [json.loads((folder / "results" / "test.json").read_text()) for folder in (one, two)]
    assert [result["sentences"] for result in results] == [counts["test"]] * 2
    assert results[0]["scores"] == results[1]["scores"]
    assert results[0]["sha256"] == results[1]["sha256"]


def test_two_processes_evaluate_exactly_the_lines_in_their_order_and_once(trained, tmp_path):
    sources, references = [*trained.pairs, ""], [*trained.pairs.values(), "无"]  # seven, one of them blank
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    (tmp_path / "reference").write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "vanilla_transformer", "evaluate", str(trained.run / "final"), "--json"]
    command += ["--source", "source", "--reference", "reference", "--output-dir", "results"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    alone = evaluate_model(trained.run / "final", sources, references)
    both = json.loads(done.stdout)  # printed once
    assert (both["processes"], alone["processes"]) == (2, 1)
    for name in ("scores", "sentences", "sha256", "source_sha256"):
        assert both[name] == alone[name], name
    written = (tmp_path / "results" / "test.hypotheses.txt").read_text(encoding="utf-8").splitlines()
    assert written == [trained.pairs.get(source, "") for source in sources]
