"""gpu_check.py from end to end on a CPU, and that it never pretends to be a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | environment,
    )


@pytest.mark.integration
def test_without_a_gpu_it_says_so(tmp_path):
    done = run("--output", str(tmp_path / "result.json"), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("gpu_check: there is no GPU")
    assert not (tmp_path / "result.json").exists()


def whole(result, sizes):
    assert result["passed"], result["correctness"]
    parts = [*result["correctness"].values()]
    for size in sizes:
        parts += [*result["training"][size]["sides"].values(), *result["decoding"][size].values()]
    faults = [part for part in parts if "failed" in part or "left_out" in part]
    assert not faults
    for size in sizes:
        training = result["training"][size]
        assert {"ours", "marian", "torch.nn.Transformer"} <= training["sides"].keys()
        for side in training["sides"].values():
            assert side["tokens_per_second"] > 0
            # Weights are random: the first loss is about that of guessing, and all sides smooth alike.
            assert side["first_loss"] == pytest.approx(training["sides"]["ours"]["first_loss"], rel=0.2)


@pytest.mark.integration
def test_every_part_runs_on_a_cpu(tmp_path):
    output = tmp_path / "result.json"
    done = run("--device", "cpu", "--tiny", "--output", str(output))
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text(encoding="utf-8"))
    whole(result, ["tiny"])
    assert result["peak_flops"] is None
    assert result["training"]["tiny"]["goal"]["reached"] is None  # a share of no known peak is no figure


@pytest.mark.gpu
def test_every_part_runs_on_a_gpu(tmp_path):
    output = tmp_path / "result.json"
    done = run("--tiny", "--output", str(output))
    assert done.returncode == 0, done.stderr
    whole(json.loads(output.read_text(encoding="utf-8")), ["tiny"])
