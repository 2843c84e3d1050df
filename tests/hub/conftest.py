"""A local Hub for each test, an account on it, and a trained run to put there."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_clients import Place, copied_run
from localhub import ALICE, ALICE_READS, BOB, LocalHub


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    """Serves until the test ends, which fails if a client asked for what this Hub does not know."""
    with LocalHub() as served:
        yield served


@pytest.fixture
def place(hub: LocalHub, tmp_path: Path) -> Place:
    return Place(hub.url, "alice", ALICE, tmp_path, reader=ALICE_READS, stranger=BOB)


@pytest.fixture
def final(trained, tmp_path: Path) -> Path:
    """RUN/final of a model that knows six sentences by heart; the test may change it."""
    return copied_run(trained.run, tmp_path / "run")


@pytest.fixture
def variant(tmp_path: Path) -> Callable[[Path, float], Path]:
    """A copy of a model folder whose weights are multiplied by a factor: another model, of the same size."""

    def make(folder: Path, factor: float) -> Path:
        from safetensors.numpy import load_file, save_file

        copy = shutil.copytree(folder, tmp_path / f"times-{factor}")
        weights = load_file(copy / "model.safetensors")
        changed = {name: weight * weight.dtype.type(factor) for name, weight in weights.items()}
        save_file(changed, copy / "model.safetensors", {"format": "pt"})
        return copy

    return make
