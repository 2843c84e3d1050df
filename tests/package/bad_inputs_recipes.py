"""Cases of docs/bad_inputs.md: recipes, and the tokenizers that they name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from bad_inputs_bench import RECIPE, TOKEN, Bench, Case, cut, row

# Recipes


def recipe(text: str | bytes) -> Callable[[Bench], Case]:
    return lambda b: Case(("prepare", b.write("my.yaml", text), "--output-dir", "run"))


def in_file(text: str | bytes, **values: object) -> Callable[[Bench], Case]:
    def make(b: Bench) -> Case:
        path = b.write("my.yaml", text)
        return Case(("prepare", path, "--output-dir", "run"), {"file": path, **values})

    return make


def override(*overrides: str) -> Callable[[Bench], Case]:
    return lambda b: b.prepare(*(part for text in overrides for part in ("--set", text)), files={})


row("recipe-missing")(lambda b: Case(("train", "absent.yaml", "--output-dir", "run"), {"file": "absent.yaml"}))
row("recipe-folder")(lambda b: Case(("train", b.folder, "--output-dir", "run"), {"file": b.folder}))
row("recipe-binary")(in_file(b"\x7fELF\xff\xfe", n=4))
row("recipe-no-yaml")(in_file("data:\n  - a\n b: [\n", line=3))
row("recipe-list")(in_file("- a\n- b\n"))


@row("recipe-object")
def _(b: Bench) -> Case:
    sentinel = b.folder / "constructed"
    case = in_file(f"data:\n  corpus: !!python/object/apply:os.system ['touch {sentinel}']\n", line=2)(b)
    case.expect = lambda result: not sentinel.exists()
    return case


# Nine to the ninth letters, were they written out.
ALIASES = "x0: &x0 [a]\n" + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 10))
row("recipe-aliases")(recipe(f"{ALIASES}data: *x9\n"))
row("recipe-twice")(
    in_file(f"{RECIPE}evaluation:\n  decode: true\n".replace("max_steps: 2", "seed: 1, seed: 2"), line=5)
)
row("recipe-half-character")(in_file('data: {corpus: "\\ud800"}\n', line=1))
row("unknown-key")(override("training.max_step=3"))
row("unknown-section")(recipe(RECIPE.replace("training:", "trainig:")))
row("wrong-type")(override("training.max_steps=many"))
row("too-large")(override("training.seed=99999999999999999999"))
row("missing-key")(recipe("data: {corpus: reverse, target_lang: de}\n"))
row("wrong-size")(override("model.num_heads=3"))
row("few-positions")(
    override("model.positional_encoding=learned", "model.max_source_positions=20", "model.max_target_positions=300")
)
row("no-override")(override("training.seed"))


@row("token-in-recipe")
def _(b: Bench) -> Case:
    b.prepare(files={})
    return recipe(f"{RECIPE}tracking: {{project: {TOKEN}}}\n")(b)


@row("model-too-large")
def _(b: Bench) -> Case:
    case = b.prepare("--set", "model.d_ff=1000000000000000", files={}, verb="train")
    case.expect = lambda result: not (b.folder / "run" / "recipe.yaml").exists()
    return case


# Tokenizers


def tokenizer_case(b: Bench, change: Callable[[Path], object]) -> Case:
    path = b.folder / "tokenizer"
    path.mkdir()
    for file in b.small_model.glob("tokenizer*"):
        shutil.copyfile(file, path / file.name)
    change(path)
    return b.prepare("--set", "tokenizer.path=tokenizer", files={})


def without_end(path: Path) -> None:
    stored = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(stored | {"post_processor": None}))


row("tokenizer-missing")(lambda b: b.prepare("--set", "tokenizer.path=absent", files={}, values={"path": "absent"}))
row("tokenizer-damaged")(lambda b: tokenizer_case(b, lambda path: cut(path / "tokenizer.json", 20)))
row("tokenizer-without-end")(lambda b: tokenizer_case(b, without_end))
