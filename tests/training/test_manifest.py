import json
import subprocess
from pathlib import Path

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import manifest
from vanilla_transformer.training.manifest import RunManifest, code_version
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.write_errors import WriteError


@pytest.fixture
def accelerator():
    AcceleratorState._reset_state()
    return Accelerator(cpu=True)


def beginning():
    return {"step": 0, "training_seconds": 0.0}


def test_sessions_add_up_and_say_how_they_ended(tmp_path, accelerator):
    run, far = RunFolder(tmp_path), {"step": 0, "training_seconds": 0.0, "epoch_plan": {"pairs": 7}}
    with pytest.raises(KeyboardInterrupt), RunManifest(run, {"seed": 3}, accelerator, far.copy):
        assert json.loads(run.manifest.read_text())["sessions"][0]["outcome"] == "running"
        far |= {"step": 5, "training_seconds": 2.5}
        raise KeyboardInterrupt
    with RunManifest(run, {"seed": 3}, accelerator, far.copy):
        far |= {"step": 9, "training_seconds": 4.0}
    manifest = json.loads(run.manifest.read_text())
    steps = [(session["first_step"], session["last_step"], session["outcome"]) for session in manifest["sessions"]]
    assert steps == [(0, 5, "KeyboardInterrupt"), (5, 9, "finished")]
    assert (manifest["seed"], manifest["training_seconds"], manifest["epoch_plan"]) == (3, 4.0, {"pairs": 7})
    assert manifest["libraries"]["torch"] and manifest["hardware"]["processes"] == 1


def test_the_manifest_holds_no_secrets(tmp_path, accelerator, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with RunManifest(RunFolder(tmp_path), {}, accelerator, beginning):
        pass
    assert "hf_secret" not in (tmp_path / "manifest.json").read_text()


def test_a_disk_that_fills_up_neither_hides_the_end_of_the_run_nor_spoils_the_manifest(
    tmp_path, accelerator, monkeypatch, caplog
):
    def full(path, value):
        raise OSError(28, "No space left on device", str(path))

    run = RunFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), RunManifest(run, {}, accelerator, beginning):
        monkeypatch.setattr(manifest, "write_json", full)
        raise ZeroDivisionError
    assert "How this session ended is not in the run's manifest. " in caplog.text
    assert caplog.text.count("No space left on device") == 1 and "--resume" not in caplog.text
    assert json.loads(run.manifest.read_text())["sessions"][0]["outcome"] == "running"
    with pytest.raises(WriteError, match="manifest.json could not be written: No space left"):
        RunManifest(run, {}, accelerator, beginning).__enter__()


@pytest.mark.parametrize("content", ["", "[]", '{"sessions": 3}', "\x00"])
def test_a_manifest_that_cannot_be_read_is_named(tmp_path, accelerator, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match="manifest.json cannot be read .*delete it, and the run goes on"):
        RunManifest(RunFolder(tmp_path), {}, accelerator, beginning)


def test_the_commit_is_that_of_the_checkout_if_there_is_one():
    folder = Path(__file__).parent
    asked = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert code_version()["commit"] == (asked.stdout.strip() if asked.returncode == 0 else None)
