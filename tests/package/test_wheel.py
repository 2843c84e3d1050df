"""A wheel holds the whole package and nothing beside it, and installs into an empty environment."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
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
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    return built_wheel(copy)


def built_wheel(source: Path) -> Path:
    """The wheel that pip makes of an unpacked source."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "out"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=source, check=True, timeout=300)
    [built] = (source / "out").glob("*.whl")
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel but its own list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def test_it_holds_only_the_package_and_all_of_it(wheel: Path):
    names = contents(wheel).keys()
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
        "vanilla_transformer/py.typed",
        "vanilla_transformer/training/model_card.md",
        "vanilla_transformer/training/ladder/pronoun_sentences.yaml",
    }
    assert f"{info}licenses/LICENSE" in names


def test_the_model_card_s_template_is_the_one_at_the_root(wheel: Path):
    template = contents(wheel)["vanilla_transformer/training/model_card.md"]
    assert template == (ROOT / "model_card.md").read_bytes() and b"# {{ name }}" in template


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path):
    build = "from setuptools.build_meta import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
    checkout = wheel.parents[1]
    command = [sys.executable, "-c", build, str(tmp_path)]
    output = subprocess.check_output(command, cwd=checkout, text=True, stderr=subprocess.DEVNULL, timeout=120)
    name = output.splitlines()[-1]
    with tarfile.open(tmp_path / name) as archive:
        archive.extractall(tmp_path, filter="data")
    assert contents(built_wheel(tmp_path / name.removesuffix(".tar.gz"))) == contents(wheel)


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
