"""No token or password in anything that a run writes or says, whether it ends well, on bad input, or by our fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from bad_inputs_bench import ENGLISH, GERMAN, RECIPE, TOKEN

from vanilla_transformer.training.command import run

PASSWORD = "swordfish-and-chips"


def secrets_in(folder: Path, *streams: bytes) -> list[str]:
    """Where the token or the password stands: names of files, or the number of a stream."""
    places = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    places |= {f"stream {number}": stream for number, stream in enumerate(streams, start=1)}
    assert len(places) > len(streams)
    return [place for place, text in places.items() if TOKEN.encode() in text or PASSWORD.encode() in text]


@pytest.fixture
def start(tmp_path: Path):
    """Runs a command line in a process whose environment holds a token, and an address of the Hub with a password."""
    for split in ("train", "dev", "test"):
        for lang, lines in (("en", ENGLISH), ("de", GERMAN)):
            path = tmp_path / "data" / f"{split}.{lang}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(lines.replace("house", f"{split} house"), encoding="utf-8")
    (tmp_path / "my.yaml").write_text(f"{RECIPE}tracking: {{trackers: [tensorboard]}}\n", encoding="utf-8")
    environment = os.environ | {
        "HF_TOKEN": TOKEN,
        "HF_ENDPOINT": f"http://user:{PASSWORD}@127.0.0.1:9",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "home"),
    }

    def start(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "vanilla_transformer", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=400)

    return start


@pytest.mark.integration
def test_a_run_that_ends_well(start, tmp_path):
    done = start("train", "my.yaml", "--output-dir", "run")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {"recipe.yaml", "manifest.json", "metrics.jsonl", "checkpoints", "final", "results", "trackers"}
    assert secrets_in(tmp_path, done.stdout, done.stderr) == []


@pytest.mark.integration
def test_a_run_that_fails_where_the_password_is_part_of_the_address(start, tmp_path):
    done = start("train", "my.yaml", "--output-dir", "run", "--set", "data.corpus=user/pairs")
    assert done.returncode == 1
    assert b"http://***@127.0.0.1:9 cannot be reached" in done.stderr
    assert secrets_in(tmp_path, done.stdout, done.stderr) == []


def test_a_fault_of_our_own_shows_its_traceback_without_them(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "an-older-kind-of-token")
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        try:
            raise ConnectionError(f"https://user:{PASSWORD}@host refused {TOKEN}")
        except ConnectionError as error:
            raise RuntimeError("headers: an-older-kind-of-token") from error

    with pytest.raises(SystemExit) as ended:
        run(app, [])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "Traceback" in said and "in fail" in said
    assert "https://***@host refused hf_***" in said and "headers: ***" in said
    for secret in (PASSWORD, TOKEN, "older-kind"):
        assert secret not in said.replace('"headers: an-older-kind-of-token"', "")  # the line of this file itself
