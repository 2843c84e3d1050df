"""Cases of docs/bad_inputs.md: checkpoints, the folders of runs, and disks that are full."""

import json
import shutil
from pathlib import Path
from typing import Any

from bad_inputs_bench import Bench, Case, cut, file_limit, row

from vanilla_transformer.training.durable import MANIFEST, write_manifest
from vanilla_transformer.training.folder_lock import locked
from vanilla_transformer.training.prepare import prepare
from vanilla_transformer.training.recipe import load_recipe

LAST = Path("run") / "checkpoints" / "step-150"


def average(b: Bench, second: Path, **values: object) -> Case:
    return Case(("average", b.small_model, second, "--output", "mean"), {"path": second, **values})


@row("average-other-model")
def _(b: Bench) -> Case:
    return average(b, b.model(d_ff=64), first=b.small_model)


@row("average-cut")
def _(b: Bench) -> Case:
    path = b.model()
    cut(path / "model.safetensors", 100)
    return average(b, path)


row("average-exists")(lambda b: Case(("average", b.small_model, "--output", b.model()), {"path": b.folder / "model"}))
row("average-few")(lambda b: Case(("average", "run", "--last", "2", "--output", "mean"), {"run": "run"}))


@row("output-under-file")
def _(b: Bench) -> Case:
    b.write("run", "no folder")
    case = b.prepare("--output-dir", "run/here", files={}, verb="train")  # the last one counts
    case.values = {"path": "run/here"}
    return case


@row("output-in-use")
def _(b: Bench) -> Case:
    (b.folder / "run").mkdir()
    return b.prepare(files={}, verb="train", values={"path": "run"}, under=lambda: locked(b.folder / "run"))


@row("output-not-empty")
def _(b: Bench) -> Case:
    b.write("run/thesis.tex", "years of work")
    return b.prepare(files={}, verb="train", values={"path": "run", "files": "thesis.tex"})


def resume(*more: object, **values: object) -> Case:
    return Case(("train", "memorise.yaml", "--output-dir", "run", "--resume", *more), values)


@row("resume-other-recipe")
def _(b: Bench) -> Case:
    b.run()
    return resume("--set", "training.seed=2")


@row("resume-other-data")
def _(b: Bench) -> Case:
    b.run()
    pairs = b.folder / "pairs" / "train.tsv"
    pairs.write_text("one more\tnoch eins\n" + pairs.read_text(encoding="utf-8"), encoding="utf-8")
    return resume(checkpoint=LAST)


@row("resume-other-model")
def _(b: Bench) -> Case:
    b.run()
    stored: dict[str, Any] = json.loads((LAST / "config.json").read_text(encoding="utf-8"))
    (LAST / "config.json").write_text(json.dumps(stored | {"activation": "gelu"}), encoding="utf-8")
    (LAST / MANIFEST).unlink()
    write_manifest(LAST, step=150)  # as if it were meant
    return resume(problem="activation: gelu", other="relu")


@row("resume-damaged")
def _(b: Bench) -> Case:
    for folder in (b.run() / "checkpoints").iterdir():
        cut(folder / "model.safetensors", 1)
    return resume(checkpoint=LAST)


LINES = [" ".join(str(n * m) for m in range(1, 20)) + "\n" for n in range(1, 500)]


def large(b: Bench) -> Case:
    return b.prepare(files={"train.en": "".join(LINES), "train.de": "".join(reversed(LINES))})


@row("cache-disk-full")
def _(b: Bench) -> Case:
    case = large(b)
    case.under = lambda: file_limit(8192)
    return case


@row("prepared-disk-full")
def _(b: Bench) -> Case:
    case = large(b)
    prepare(load_recipe("my.yaml"), "run")  # the cleaned corpus is in the cache then
    shutil.rmtree("run")
    case.under, case.values = lambda: file_limit(8192), {"folder": Path("run/prepared")}
    return case
