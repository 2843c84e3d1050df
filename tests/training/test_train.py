"""Whole runs in processes of their own: killed and resumed, told to stop, shared out over two processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.durable import fault
from vanilla_transformer.training.recipe import load_recipe
from vanilla_transformer.training.train import train

pytestmark = pytest.mark.integration

# Dropout, two parts an update, epochs of a few updates, validation, checkpoints off the rhythm of validation.
RECIPE = """
data: {corpus: reverse, source_lang: fwd, target_lang: rev, limit: 500, dev_limit: 20}
tokenizer: {type: words}
model: {d_model: 32, d_ff: 64, num_heads: 2, num_encoder_layers: 1, num_decoder_layers: 1, dropout: 0.2}
training:
  {max_steps: 48, max_source_tokens: 400, max_target_tokens: 400, warmup_steps: 20, log_every: 1, save_every: 7,
   eval_every: 12, keep_last: 3, average_last: 3, threads: 1, num_workers: 1, gradient_accumulation_steps: 2}
generation: {num_beams: 1}
evaluation: {metrics: [bleu]}
"""
MODULE = ["-m", "vanilla_transformer.training.train"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def start(recipe, folder, *options, processes=1):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, *MODULE, str(recipe), "--output-dir", str(folder), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, **pipes)


def finish(process, exit_code=0):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == exit_code, errors[-3000:]
    return output, errors


def wait_for_rows(process, folder, count, session):
    """Until that session (from 1) trains and the log has `count` rows; an earlier session may have left more."""
    log, manifest = folder / "metrics.jsonl", folder / "manifest.json"
    while process.poll() is None:
        if manifest.exists() and len(json.loads(manifest.read_text())["sessions"]) == session:
            if log.read_bytes().count(b"\n") >= count:
                return
        time.sleep(0.002)


def rows(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        del row["tokens_per_second"]
    return found


def outcome(folder):
    """All that must be bitwise the same in two runs of one recipe."""
    files = ["best/model.safetensors", "final/model.safetensors", "results/test.hypotheses.txt"]
    files += [
        f"checkpoints/{step.name}/{f}.safetensors" for step in checkpoints(folder) for f in ("model", "optimizer")
    ]
    return {name: (folder / name).read_bytes() for name in files}


def checkpoints(folder):
    return sorted((folder / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """A run that nothing happens to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    output, errors = finish(start(recipe, folder))
    assert output.splitlines()[-1] == str(folder / "final")
    assert "test bleu = " in output and "|tok:13a|" in output
    return folder


def test_a_run_leaves_what_the_contract_names(whole):
    names = {"recipe.yaml", "manifest.json", "metrics.jsonl", "checkpoints", "best", "final", "results", "prepared"}
    assert {path.name for path in whole.iterdir()} - {".lock"} == names
    assert [path.name for path in checkpoints(whole)] == ["step-28", "step-35", "step-42", "step-48"]
    assert all(fault(path) is None for path in [*checkpoints(whole), whole / "best"])
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["data"]["counters"]["train"]["kept"] == 500
    assert manifest["sessions"][0]["outcome"] == "finished" and manifest["sessions"][0]["last_step"] == 48
    scores = [row for row in rows(whole) if "validation_bleu" in row]
    assert [row["step"] for row in scores] == [12, 24, 36, 48]
    assert all({"validation_loss", "validation_perplexity"} <= set(row) for row in scores)
    result = json.loads((whole / "results" / "test.json").read_text())
    assert result["sentences"] == 1000 and result["scores"]["bleu"]["signature"]


def test_the_final_model_is_the_mean_of_the_last_scheduled_checkpoints(whole):
    means = load_file(whole / "final" / "model.safetensors")
    parts = [load_file(whole / "checkpoints" / f"step-{step}" / "model.safetensors") for step in (28, 35, 42)]
    for name, mean in means.items():
        expected = sum(part[name].double() for part in parts) / 3
        assert (mean.double() - expected).abs().max() < 1e-7


def test_killed_and_told_to_stop_a_run_ends_as_if_nothing_had_happened(recipe, whole, tmp_path):
    folder, draw = tmp_path / "run", random.Random(20240)
    points = sorted(draw.sample(range(2, 47), 3))
    blows = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
    for session, (after, blow) in enumerate(zip(points, blows, strict=True), start=1):
        process = start(recipe, folder, "--resume")
        wait_for_rows(process, folder, after, session)
        time.sleep(draw.uniform(0, 0.1))
        os.killpg(process.pid, blow)  # as a scheduler does, data workers and all
        if blow == signal.SIGKILL:
            process.communicate()
            assert process.returncode == -signal.SIGKILL
        else:
            _, errors = finish(process, exit_code=75)
            assert "Stopped by a signal after step" in errors and "Traceback" not in errors
    finish(start(recipe, folder, "--resume"))
    assert rows(folder) == rows(whole)
    assert outcome(folder) == outcome(whole)
    sessions = json.loads((folder / "manifest.json").read_text())["sessions"]
    assert [session["outcome"] for session in sessions] == ["running", "Preempted", "running", "finished"]


def test_a_folder_in_use_and_a_changed_recipe_are_refused(recipe, whole):
    with pytest.raises(UsageError, match="is not empty.*--resume"):
        train(load_recipe(recipe), whole)
    with pytest.raises(UsageError, match="training.seed = 2: the run in the folder has 1"):
        train(load_recipe(recipe, ["training.seed=2"]), whole, resume=True)


def test_two_processes_are_one_with_twice_the_accumulation_and_go_on_as_one(recipe, whole, tmp_path):
    folder, one_part_each = tmp_path / "two", ("--set", "training.gradient_accumulation_steps=1")
    finish(start(recipe, folder, *one_part_each, "--set", "training.max_steps=24", processes=2))
    hardware = json.loads((folder / "manifest.json").read_text())["hardware"]
    assert (hardware["processes"], hardware["distributed"]) == (2, "MULTI_CPU")
    finish(start(recipe, folder, *one_part_each, "--resume"))  # on one process, to the recipe's 48 updates
    assert json.loads((folder / "manifest.json").read_text())["hardware"]["processes"] == 1
    for one, two in zip(rows(whole), rows(folder), strict=True):
        assert one == pytest.approx(two, rel=1e-4)


def test_processes_without_a_pair_of_their_own_neither_wait_nor_count(recipe, tmp_path):
    # One pair an update and one in dev: in each update, and in each validation, one of two processes has nothing.
    options = []
    for setting in (
        *("data.dev_limit=1", "training.max_source_tokens=11", "training.max_target_tokens=11"),
        *("training.max_steps=6", "training.eval_every=3", "training.gradient_accumulation_steps=1"),
        "model.dropout=0",
    ):
        options += ["--set", setting]
    finish(start(recipe, tmp_path / "two", *options, processes=2))
    finish(start(recipe, tmp_path / "one", *options))
    for one, two in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        assert one == pytest.approx(two, rel=1e-4)
