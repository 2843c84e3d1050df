"""Peers in virtual environments of their own: .bench/NAME, made once and kept.

torch is the release that this package is tested with, also where a peer asks for an older one: the same kernels on all
sides, and on a machine without a GPU a build without CUDA. So a peer's own requirements are not asked; what it imports
is listed here.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

TORCH_FOR_CPU = "https://download.pytorch.org/whl/cpu"
MINUTES = 15


@dataclass(frozen=True)
class Peer:
    """A package and what of its requirements it needs here."""

    package: str
    requirements: tuple[str, ...]


_TOOLKIT = ("tensorboard", "sacrebleu", "pyyaml", "six", "packaging")
PEERS = {
    # importlib_metadata stands in its code and not in its requirements; its protobuf is of 2022.
    "joeynmt": Peer(
        "joeynmt==2.3.0",
        (*_TOOLKIT, "numpy", "pandas", "matplotlib", "seaborn", "importlib_metadata", "sacremoses", "datasets")
        + ("sentencepiece", "subword-nmt"),
    ),
    "opennmt_py": Peer(
        "OpenNMT-py==3.5.1",
        (*_TOOLKIT, "configargparse", "ctranslate2>=4,<5", "pyonmttok>=1.37,<2", "rapidfuzz", "pyahocorasick")
        + ("flask", "waitress"),
    ),
    "eole": Peer(
        "eole==0.6.4",
        (*_TOOLKIT, "configargparse", "ctranslate2>=4,<5", "pyonmttok>=1.38.1,<2", "rapidfuzz", "pyahocorasick")
        + ("waitress", "fastapi", "pydantic", "rich", "safetensors", "huggingface_hub", "sentencepiece<=0.2.2")
        + ("tokenizers", "torch-optimi", "datasets", "pandas", "protobuf==7.36.2", "subword-nmt>=0.3.7"),
    ),
    "sockeye": Peer("sockeye==3.1.34", ("pyyaml", "sacrebleu", "numpy<2")),
}


class PeerUnavailable(Exception):
    """A peer cannot be installed or does not run here; says why."""


def python_of(name: str, folder: Path) -> Path:
    """The interpreter of a peer's environment in FOLDER, made where it is absent or was made of other packages.

    Raises PeerUnavailable with the installer's last words.
    """
    peer, environment = PEERS[name], folder / name
    made_of = [torch_requirement(), peer.package, *peer.requirements]
    ready, python = environment / "ready.json", environment / "bin" / "python"
    if ready.exists() and json.loads(ready.read_text(encoding="utf-8")) == made_of:
        return python
    shutil.rmtree(environment, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(environment)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraint = environment / "constraints.txt"
    constraint.write_text(torch_requirement() + "\n", encoding="utf-8")
    try:
        _run([*install, torch_requirement()])
    except PeerUnavailable:
        if "+cpu" not in torch_requirement():
            raise
        _run([*install, "--extra-index-url", TORCH_FOR_CPU, torch_requirement()])
    _run([*install, "--no-deps", peer.package])
    _run([*install, "--constraint", str(constraint), *peer.requirements])
    ready.write_text(json.dumps(made_of), encoding="utf-8")
    return python


def torch_requirement() -> str:
    """This environment's release; its CPU build where there is no GPU, and there are builds to choose from."""
    release = torch.__version__.split("+")[0]
    for_cpu = platform.system() == "Linux" and not torch.cuda.is_available()
    return f"torch=={release}+cpu" if for_cpu else f"torch=={release}"


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MINUTES * 60, env=_without_preload())
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"{' '.join(command[1:4])} took more than {MINUTES} minutes") from error
    if done.returncode:
        raise PeerUnavailable(last_words(done.stderr) or f"exit code {done.returncode}")


def last_words(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _without_preload() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
