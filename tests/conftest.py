"""What every test may rely on: no network to the Hub, no token, a cache of its own, real data where it lies."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Text that may not be committed here lies beside the checkout; a clone elsewhere is told by this variable.
SHARED_DATA = Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))

# Before any Hugging Face import: they read these once. Started processes inherit them.
for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN"):
    os.environ.pop(name, None)
_hf_home = tempfile.TemporaryDirectory(prefix="hf-home-")
os.environ |= {
    "HF_HOME": _hf_home.name,
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a folder or file of the shared data; skips the test where it is absent."""

    def locate(name: str) -> Path:
        path = SHARED_DATA / name
        if not path.exists():
            pytest.skip(f"{path} is absent; set SHARED_DATA to the folder that holds {name}")
        return path

    return locate


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
