"""The worked examples run as they stand, as a stranger runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"


@pytest.mark.integration
def test_finetuning_with_the_trainer(trained, tmp_path: Path):
    """The tiny model unlearns its six translations: every sentence is to be copied, as all its words are known."""
    lines = [f"{source}\t{source}\n" for source in trained.pairs] * 20
    (tmp_path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    arguments = [str(trained.run / "final"), "pairs.tsv", "run", "--steps", "120", "--learning-rate", "5e-3"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "finetune.py"), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [(count, before, after)] = re.findall(r"BLEU of (\d+) held-out pairs: (.+) before, (.+) after", done.stdout)
    assert int(count) == 12
    assert float(before) < 20
    assert float(after) == pytest.approx(100)
    for source in list(trained.pairs)[:3]:
        assert f"{source} -> {source}\n" in done.stdout
    assert (tmp_path / "run" / "final" / "model.safetensors").exists()
