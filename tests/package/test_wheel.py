"""A wheel holds the whole package and nothing beside it, and installs into an empty environment."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "package": "vanilla_transformer",
    "configuration": "vanilla_transformer/configuration",
    "modeling": "vanilla_transformer/modeling",
    "training": "vanilla_transformer/training",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools would put what an older build left in the checkout into the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(ROOT, copy, ignore=ignored)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "out",
        ".",
    ]
    subprocess.run(command, cwd=copy, check=True, timeout=300)
    [built] = (copy / "out").glob("*.whl")
    return built


def test_it_holds_only_the_package_and_all_of_it(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    version = ConfigParser()
    version.read(ROOT / "setup.cfg")
    info = f"vanilla_transformer-{version['metadata']['version']}.dist-info/"
    assert {name for name in names if not name.startswith(("vanilla_transformer/", info))} == set()
    modules = {
        f"{target}/{path.relative_to(ROOT / folder)}"
        for folder, target in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in names if name.startswith("vanilla_transformer/")} == modules | {
        "vanilla_transformer/py.typed"
    }
    assert f"{info}licenses/LICENSE" in names


def test_it_installs_into_an_empty_environment(wheel: Path, tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, timeout=120)
    site = Path(
        subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    )
    installed = {entry.name.removesuffix(".dist-info").split("-")[0] for entry in site.iterdir()}
    assert installed == {"vanilla_transformer"}

    # Dependencies come from this environment; its editable install is not seen: PYTHONPATH reads no .pth files.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    where = subprocess.check_output(
        [python, "-c", "import vanilla_transformer; print(vanilla_transformer.__file__)"],
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    assert Path(where.strip()) == site / "vanilla_transformer" / "__init__.py"
    script = tmp_path / "venv" / "bin" / "vanilla-transformer"
    shown = subprocess.check_output([script, "--help"], text=True, cwd=tmp_path, env=environment, timeout=120)
    assert "translate" in shown
