"""The bench on which rows of docs/bad_inputs.md are tried: a folder, what to put into it, and a command line."""

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TOKEN = "hf_" + "Q" * 34  # as long as the Hub's
ENGLISH = "".join(f"house number {n}\n" for n in range(6))
GERMAN = "".join(f"Haus Nummer {n}\n" for n in range(6))
RECIPE = """
data: {corpus: data, source_lang: en, target_lang: de}
tokenizer: {type: words, vocab_size: 60}
model: {preset: null, d_model: 16, d_ff: 32, num_heads: 2, num_encoder_layers: 1, num_decoder_layers: 1}
training: {max_steps: 2}
"""


@dataclass
class Case:
    """A command line that gives bad input, and what its sentence must name."""

    arguments: tuple[object, ...]
    values: dict[str, object] = field(default_factory=dict)  # by placeholder; another one stands for anything
    stdin: bytes | None = b""  # None: closed
    redirect: str | None = None  # run by a shell, in a process of its own, with this behind the command
    under: Callable[[], AbstractContextManager[object]] = nullcontext  # what the command runs in
    expect: Callable[[SimpleNamespace], bool] = lambda result: True


class Bench:
    """An empty folder that is the working directory, and what cases put into it."""

    def __init__(self, folder: Path, small_model: Path, trained: Callable[[], Any]):
        """`small_model` is a model folder; `trained` gives conftest's run, made by a process of its own."""
        self.folder, self.small_model, self._trained = folder, small_model, trained

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def prepare(self, *more: object, files: dict[str, str | bytes | None], verb: str = "prepare", **case: Any) -> Case:
        """`prepare` on a corpus of two aligned files, of which `files` replaces or, by None, leaves out some."""
        aligned = {"train.en": ENGLISH, "train.de": GERMAN}
        for name, content in {**aligned, **files}.items():
            if content is not None:
                self.write(f"data/{name}", content)
        return Case((verb, self.write("my.yaml", RECIPE), "--output-dir", "run", *more), **case)

    def one_file(self, name: str, content: str | bytes, **values: object) -> Case:
        """`prepare` on a corpus of one bilingual file; its name is the sentence's <file>."""
        values = {"file": self.folder / "data" / name} | values
        return self.prepare(files={"train.en": None, "train.de": None, name: content}, values=values)

    def german(self, content: str | bytes, **values: object) -> Case:
        """`prepare` on two aligned files, of which the German one is `content`; its name is the sentence's <file>."""
        values = {"file": self.folder / "data" / "train.de"} | values
        return self.prepare(files={"train.de": content}, values=values)

    def counted(self, german: str | bytes, kept: int, **dropped: int) -> Case:
        """`prepare` on two aligned files that can be used, with its counters; the German one is `german`."""
        case = self.prepare("--json", files={"train.de": german})
        expected = {"read": 6, "kept": kept, **dropped}
        case.expect = lambda result: expected.items() <= json.loads(result.out)["train"].items()
        return case

    def model(self, **config: Any) -> Path:
        """A model folder of its own; fields of config.json may be changed."""
        path = self.folder / "model"
        shutil.copytree(self.small_model, path)
        if config:
            stored = json.loads((path / "config.json").read_text(encoding="utf-8"))
            (path / "config.json").write_text(json.dumps(stored | config), encoding="utf-8")
        return path

    def translate(self, model: Path, *more: object, stdin: bytes | None = b"a b\n", **values: object) -> Case:
        return Case(("translate", model, "--beams", "2", *more), values, stdin)

    def evaluate(
        self, *more: object, hypotheses: str = "a b c d\n", references: str = "a b c d\n", **case: Any
    ) -> Case:
        files = (
            "--hypotheses",
            self.write("hypotheses", hypotheses),
            "--reference",
            self.write("references", references),
        )
        return Case(("evaluate", *files, "--metric", "bleu", *more), **case)

    def run(self) -> Path:
        """A finished run of three checkpoints, and its recipe and corpus beside it."""
        trained = self._trained()
        for name in ("pairs", "run"):
            shutil.copytree(trained.folder / name, self.folder / name)
        shutil.copyfile(trained.folder / "memorise.yaml", self.folder / "memorise.yaml")
        return self.folder / "run"


CASES: dict[str, Callable[[Bench], Case]] = {}


def row(id: str) -> Callable[[Callable[[Bench], Case]], Callable[[Bench], Case]]:
    """Names the row of the table that a function makes the case of."""

    def enter(make: Callable[[Bench], Case]) -> Callable[[Bench], Case]:
        assert id not in CASES, f"{id} stands twice"
        CASES[id] = make
        return make

    return enter


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: what a full disk is to a program, but for the number of the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def cut(path: Path, size: int) -> None:
    """Take so many bytes from a file's end."""
    path.write_bytes(path.read_bytes()[:-size])
