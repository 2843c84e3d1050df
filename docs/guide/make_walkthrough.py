"""Go the way of a new user from an empty folder, and write down what was typed and what came: make walkthrough.

    python docs/guide/make_walkthrough.py

An author trains a small model and pushes it; somebody else translates with it where the package is not installed,
installs the wheel, fine-tunes the model, pushes the result and loads it again. The Hub is the tests' own, over
loopback. Takes about ten minutes on two cores; writes docs/guide/walkthrough.md.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "walkthrough"
TRANSCRIPT = Path(__file__).resolve().parent / "walkthrough.md"
sys.path.insert(0, str(ROOT / "tests" / "hub"))

from localhub import ALICE, BOB, LocalHub  # noqa: E402

from vanilla_transformer.training.corpus import load_corpus  # noqa: E402
from vanilla_transformer.training.recipe import load_recipe  # noqa: E402

TESTED_SHARE = 4  # every fourth of the user's pairs is held out
INTRODUCTION = """\
# A walk through: somebody else's model, made one's own

Written by `make walkthrough` (docs/guide/make_walkthrough.py), which typed every command below into an empty folder and
copied what came. The Hub is a model of it that the tests use, over loopback (tests/hub/localhub.py), with the true
huggingface_hub client; on huggingface.co the same commands need `hf auth login` and nothing else. torch and the
other dependencies were there already. The times are of a machine that had other work beside it. The model is a small
one, trained for minutes: good enough to see it get better.
"""


class Machine:
    """A folder, a Python environment with nothing of ours in it, and a Hugging Face cache of its own."""

    def __init__(self, folder: Path, name: str, hub: str, token: str):
        self.folder, self.python = folder / name, folder / f"{name}-venv" / "bin" / "python"
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.python.parents[1])], check=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        self.environment = {
            **kept,
            # The dependencies come from this environment. Its editable install is not seen: a folder on PYTHONPATH is
            # searched for packages, and its .pth files are not read.
            "PYTHONPATH": sysconfig.get_path("purelib"),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "HF_ENDPOINT": hub,
            "HF_HOME": str(folder / f"{name}-hf-home"),
            "HF_TOKEN": token,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-index", str(wheel)], check=True)

    def run(self, command: str) -> str:
        """What the command printed on stdout; stops with all it said if it failed."""
        words = shlex.split(command)
        path = shutil.which(words[0], path=self.environment["PATH"])
        done = subprocess.run(
            [path, *words[1:]], cwd=self.folder, env=self.environment, capture_output=True, text=True, encoding="utf-8"
        )
        if done.returncode:
            sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout.strip()


class Transcript:
    """Markdown of what was typed and what came."""

    def __init__(self) -> None:
        self.parts = [INTRODUCTION]

    def say(self, text: str) -> None:
        self.parts.append(f"{text}\n")

    def file(self, machine: Machine, name: str) -> None:
        """Give the machine one of the walk's files and show it."""
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        (machine.folder / name).write_text(text, encoding="utf-8")
        self.parts.append(f"`{name}`:\n\n```{'yaml' if name.endswith('.yaml') else 'python'}\n{text}```\n")

    def run(self, machine: Machine, command: str) -> None:
        print(f"$ {command}", file=sys.stderr)
        started = time.monotonic()
        output = machine.run(command)
        seconds = time.monotonic() - started
        self.parts.append(f"```console\n$ {command}\n{output}\n```\n\n({seconds:.0f} s)\n")


def build_wheel(folder: Path) -> Path:
    """Of a copy of the checkout: setuptools would put what an older build left there into the wheel."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(ROOT, folder / "checkout", ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), "."], cwd=folder / "checkout", check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def write_pairs(folder: Path) -> dict[str, int]:
    """pairs.jsonl and test.jsonl: strings of integrations that the author's recipe never trains on; how many of each.

    A source that is in both would be known by heart, so it is left out of the test.
    """
    splits = load_corpus(load_recipe(SCRIPTS / "small.yaml").data).splits
    rows = [row["translation"] for split in ("dev", "test") for row in splits[split]]
    pairs = [row for number, row in enumerate(rows) if number % TESTED_SHARE]
    known = {row["en"] for row in pairs}
    files = {"pairs.jsonl": pairs, "test.jsonl": [row for row in rows[::TESTED_SHARE] if row["en"] not in known]}
    for name, content in files.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in content]
        (folder / name).write_text("".join(lines), encoding="utf-8")
    return {name: len(content) for name, content in files.items()}


def walk(folder: Path, hub: str) -> Transcript:
    wheel = build_wheel(folder)
    author, user, reader = (
        Machine(folder, name, hub, token) for name, token in (("author", ALICE), ("user", BOB), ("reader", BOB))
    )
    transcript = Transcript()
    transcript.say("## Alice trains a small model and pushes it")
    author.install(wheel)
    transcript.say(f"```console\n$ pip install {wheel.name}\n```")
    transcript.file(author, "small.yaml")
    transcript.run(author, "vanilla-transformer train small.yaml --output-dir runs/small")
    transcript.run(author, "vanilla-transformer push runs/small/final alice/home-en-de --tag v1 --license apache-2.0")

    transcript.say("## Bob translates with it, without the package")
    transcript.file(user, "translate.py")
    transcript.run(user, "python translate.py")

    transcript.say("## Bob fine-tunes it on pairs of his own")
    counts = write_pairs(user.folder)
    transcript.say(
        f"`pairs.jsonl` holds {counts['pairs.jsonl']:,} strings of programs that Alice's training never saw, "
        f"`test.jsonl` {counts['test.jsonl']:,} other strings of the same programs: what Bob would like translated."
    )
    user.install(wheel)
    transcript.say(f"```console\n$ pip install {wheel.name}\n```")
    transcript.file(user, "fine_tune.py")
    transcript.run(user, "python fine_tune.py")
    transcript.run(user, "vanilla-transformer push fine-tuned bob/home-en-de-fine-tuned")

    transcript.say("## Loaded again, on a machine that has neither the package nor a cache")
    shutil.copy(user.folder / "test.jsonl", reader.folder)
    transcript.file(reader, "load_again.py")
    transcript.run(reader, "python load_again.py")
    return transcript


def main() -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="walkthrough-") as name, LocalHub() as hub:
        transcript = walk(Path(name), hub.url)
        manifest = json.loads(Path(name, "author/runs/small/manifest.json").read_text(encoding="utf-8"))
        transports = ", ".join(sorted(hub.transports()))
    versions = ", ".join(f"{each} {version(each)}" for each in ("torch", "transformers", "huggingface_hub", "datasets"))
    machine = manifest["hardware"]
    transcript.say(
        f"---\n\n{datetime.now(UTC).date()}, {(time.monotonic() - started) / 60:.1f} minutes in all, on "
        f"{machine['threads']} threads of {machine['processor']}; Python {sys.version.split()[0]}, {versions}. Weights "
        f"went over the wire by {transports}."
    )
    TRANSCRIPT.write_text("\n".join(transcript.parts), encoding="utf-8")
    print(TRANSCRIPT)


if __name__ == "__main__":
    main()
