"""True clients of a Hub, each in a process of its own: HF_ENDPOINT is read once, when huggingface_hub is imported."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Place:
    """A Hub, an account that may write there, and tokens: of that account, read-only, of somebody else, of nobody.

    `scratch` holds what the clients keep: Hugging Face homes with their caches, and answers.
    """

    url: str
    owner: str
    token: str
    scratch: Path
    reader: str | None = None
    stranger: str | None = None
    wrong: str = "hf_notATokenOfAnybody0000"
    repos: list[str] = field(default_factory=list)

    def repo(self, name: str) -> str:
        """A name that no other test has on this Hub; `repos` keeps it for whoever cleans up."""
        self.repos.append(f"{self.owner}/vanilla-transformer-{name}-{uuid.uuid4().hex[:8]}")
        return self.repos[-1]

    def environment(self, token: str | None = "", xet: bool = True, **more: str) -> dict[str, str]:
        """Of a process that has never met a Hub: fresh caches, and the owner's token, or another, or None."""
        foreign = ("HF_", "HUGGING", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        token = self.token if token == "" else token
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.scratch / f"home-{uuid.uuid4().hex[:8]}"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",
            **({"HF_TOKEN": token} if token else {}),
            **({} if xet else {"HF_HUB_DISABLE_XET": "1"}),
            **more,
        }


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def run_cli(environment: dict[str, str], *arguments: object, folder: Path | None = None) -> Result:
    """`vanilla-transformer ARGUMENTS` in that environment; no token may be in what it prints."""
    command = [sys.executable, "-m", "vanilla_transformer", *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    token = environment.get("HF_TOKEN")
    assert not token or token not in done.stdout + done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


def run_client(place: Place, script: str, request: dict[str, Any], **environment: Any) -> dict[str, Any]:
    """The answer of a script in this folder: it gets the request as a file, and the name of a file for its answer."""
    folder = place.scratch / f"client-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    command = [sys.executable, str(FOLDER / script), "request.json", "answer.json"]
    surroundings = place.environment(**environment)
    done = subprocess.run(command, env=surroundings, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "answer.json").read_text(encoding="utf-8"))


def copied_run(run: Path, target: Path) -> Path:
    """RUN/final and what the card is made of, for a test that may change them; returns the model folder."""
    target.mkdir(parents=True)
    for name in ("recipe.yaml", "manifest.json", "metrics.jsonl"):
        shutil.copyfile(run / name, target / name)
    for name in ("results", "final"):
        shutil.copytree(run / name, target / name)
    return target / "final"
