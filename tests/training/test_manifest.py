import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.manifest import RunManifest, code_version


@pytest.fixture
def accelerator():
    AcceleratorState._reset_state()
    return Accelerator(cpu=True)


def test_sessions_add_up_and_say_how_they_ended(tmp_path, accelerator):
    path, state = tmp_path / "manifest.json", TrainerState()
    loop = SimpleNamespace(state=state, counters={"pairs": 7})
    with pytest.raises(KeyboardInterrupt), RunManifest(path, {"seed": 3}, accelerator, loop):
        assert json.loads(path.read_text())["sessions"][0]["outcome"] == "running"
        state.step, state.seconds = 5, 2.5
        raise KeyboardInterrupt
    with RunManifest(path, {"seed": 3}, accelerator, loop):
        state.step, state.seconds = 9, 4.0
    manifest = json.loads(path.read_text())
    steps = [(session["first_step"], session["last_step"], session["outcome"]) for session in manifest["sessions"]]
    assert steps == [(0, 5, "KeyboardInterrupt"), (5, 9, "finished")]
    assert (manifest["seed"], manifest["training_seconds"], manifest["epoch_plan"]) == (3, 4.0, {"pairs": 7})
    assert manifest["libraries"]["torch"] and manifest["hardware"]["processes"] == 1


def test_the_manifest_holds_no_secrets(tmp_path, accelerator, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    loop = SimpleNamespace(state=TrainerState(), counters={})
    with RunManifest(tmp_path / "manifest.json", {}, accelerator, loop):
        pass
    assert "hf_secret" not in (tmp_path / "manifest.json").read_text()


def test_the_commit_is_that_of_the_checkout_if_there_is_one():
    folder = Path(__file__).parent
    asked = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert code_version()["commit"] == (asked.stdout.strip() if asked.returncode == 0 else None)
