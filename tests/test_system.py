"""The reverse recipe from beginning to end, as a user runs it: a task whose every right answer is known."""

import subprocess
import sys
from pathlib import Path

import pytest

from vanilla_transformer.training.named_corpora import reverse_pairs

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.integration
@pytest.mark.timeout(1200)
def test_the_reverse_recipe_learns_to_reverse(tmp_path: Path):
    """At least 98% of the unseen sequences of training lengths come out exactly right, from the final model."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "vanilla_transformer", "train", "recipes/reverse.yaml", "--output-dir", str(run)]
    subprocess.run(command, cwd=ROOT, check=True)
    translations = (run / "results" / "test.hypotheses.txt").read_text(encoding="utf-8").splitlines()
    pairs = list(reverse_pairs("test"))
    assert len(translations) == len(pairs)
    right = [
        translation == " ".join(reversed(source.split()))
        for (source, _), translation in zip(pairs, translations, strict=True)
        if len(source.split()) <= 10
    ]
    assert len(right) > 500
    assert sum(right) / len(right) >= 0.98
