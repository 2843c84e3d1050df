"""What every test may rely on: no network to the Hub, no token, a cache of its own, real data where it lies."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Text that may not be committed here lies beside the checkout; a clone elsewhere is told by this variable.
SHARED_DATA = Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))

# What tests/hub/test_real_hub.py may use; no other test sees it.
REAL_HUB = {"endpoint": os.environ.get("HF_ENDPOINT"), "token": os.environ.get("HF_TOKEN")}

# Before any Hugging Face import: they read these once. Started processes inherit them.
for name in ("HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN"):
    os.environ.pop(name, None)
_hf_home = tempfile.TemporaryDirectory(prefix="hf-home-")
os.environ |= {
    "HF_HOME": _hf_home.name,
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# Tests that run side by side would fight for the cores: each gets one, and so does each process that it starts.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a folder or file of the shared data; skips the test where it is absent."""

    def locate(name: str) -> Path:
        path = SHARED_DATA / name
        if not path.exists():
            pytest.skip(f"{path} is absent; set SHARED_DATA to the folder that holds {name}")
        return path

    return locate


@pytest.fixture(scope="session")
def real_hub() -> dict[str, str]:
    """A Hub's endpoint and a token with write access to it, from HF_ENDPOINT and HF_TOKEN; skips where one is unset."""
    given = {name: value for name, value in REAL_HUB.items() if value}
    if given.keys() != REAL_HUB.keys():
        pytest.skip("needs HF_ENDPOINT and HF_TOKEN, a token of write access")
    return given


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


# What a model of 4,000 weights learns by heart in two seconds, so that tests know its translations.
PAIRS = {
    "connect to the device .": "连接 到 设备 。",
    "the battery is low .": "电池 电量 低 。",
    "turn on the light !": "打开 灯 ！",
    "unknown": "未知",
    "no .": "否 。",
    "the device is connected": "设备 已 连接",
}
MEMORISE = """
data: {corpus: pairs, source_lang: en, target_lang: zh, drop_test_overlap: false}
tokenizer: {type: words, vocab_size: 60}
model:
  {preset: null, d_model: 32, d_ff: 64, num_heads: 4, num_encoder_layers: 1, num_decoder_layers: 1, dropout: 0.0}
training:
  {max_steps: 150, learning_rate: 5e-3, warmup_steps: 30, save_every: 50, eval_every: 150, log_every: 50,
   keep_last: 3, average_last: 1, max_source_tokens: 200, max_target_tokens: 200}
"""


@dataclass(frozen=True)
class Trained:
    """A folder with a recipe, the run that the command line made of it, what it printed, and what the model knows."""

    folder: Path
    run: Path
    stdout: str
    pairs: dict[str, str]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """`vanilla-transformer train` on six pairs: memorise.yaml, and run/final which translates them."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs").mkdir()
    for split in ("train", "dev", "test"):
        lines = "".join(f"{source}\t{target}\n" for source, target in PAIRS.items())
        (folder / "pairs" / f"{split}.tsv").write_text(lines, encoding="utf-8")
    (folder / "memorise.yaml").write_text(MEMORISE, encoding="utf-8")
    command = [sys.executable, "-m", "vanilla_transformer", "train", "memorise.yaml", "--output-dir", "run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=500)
    assert done.returncode == 0, done.stderr
    return Trained(folder, folder / "run", done.stdout, PAIRS)
