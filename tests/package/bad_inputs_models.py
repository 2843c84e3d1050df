"""Cases of docs/bad_inputs.md: models, translating and scoring."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bad_inputs_bench import Bench, Case, cut, file_limit, row
from safetensors.torch import load_file, save_file

from vanilla_transformer.training.recipe import TokenizerConfig
from vanilla_transformer.training.tokenizer import train_tokenizer

# Models

row("model-missing")(lambda b: b.translate(Path("nowhere/is/model"), path="nowhere/is/model"))
row("model-file")(lambda b: b.translate(b.model() / "config.json", path=b.folder / "model/config.json"))


@row("model-run")
def _(b: Bench) -> Case:
    b.model().rename(b.folder / "final")
    return b.translate(b.folder, path=b.folder, final=b.folder / "final")


def changed(change: Callable[[Path], object] = lambda path: None, **config: Any) -> Callable[[Bench], Case]:
    """`translate` with a model folder after a change; its name is the sentence's <path> where that has one."""

    def make(b: Bench) -> Case:
        path = b.model(**config)
        change(path)
        return b.translate(path)

    return make


def changed_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Bench], Case]:
    def rewrite(path: Path) -> None:
        weights = load_file(path / "model.safetensors")
        change(weights)
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    return changed(rewrite)


def replaced(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(content)


row("model-config-damaged")(changed(lambda path: cut(path / "config.json", 20)))
row("model-config-wrong")(changed(num_heads=3, d_k=None, d_v=None))
row("model-other-kind")(changed(model_type="bert", auto_map={}))


@row("model-foreign-code")
def _(b: Bench) -> Case:
    path = b.model(model_type="strange", auto_map={"AutoConfig": "strange.C", "AutoModelForSeq2SeqLM": "strange.M"})
    sentinel = b.folder / "code-was-run"
    (path / "strange.py").write_text(f"open({str(sentinel)!r}, 'w')\n")
    case = b.translate(path, stdin=b"y\n", path=path)
    case.expect = lambda result: not sentinel.exists()
    return case


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, sentinel: Path):
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.sentinel}",)


@row("model-pickle")
def _(b: Bench) -> Case:
    path, sentinel = b.model(), b.folder / "code-was-run"
    (path / "model.safetensors").unlink()
    torch.save({"weight": Bomb(sentinel)}, path / "pytorch_model.bin")
    case = b.translate(path, path=path)
    case.expect = lambda result: not sentinel.exists()
    return case


row("model-no-weights")(changed(lambda path: (path / "model.safetensors").unlink()))
row("model-cut")(changed(lambda path: cut(path / "model.safetensors", 100)))
row("model-not-finite")(changed_weights(lambda weights: next(iter(weights.values())).fill_(float("nan"))))
row("model-other-weights")(changed(num_encoder_layers=2))
row("model-other-shapes")(changed(d_ff=64))
row("model-no-tokenizer")(changed(lambda path: [file.unlink() for file in path.glob("tokenizer*")]))
row("model-damaged-file")(changed(lambda path: cut(path / "generation_config.json", 20)))


def other_tokenizer(path: Path) -> None:
    config = TokenizerConfig(vocab_size=400, type="words")
    train_tokenizer([" ".join(str(number) for number in range(300))], config).save_pretrained(path)


row("model-other-tokenizer")(changed(other_tokenizer))
row("model-other-tokens")(changed(eos_token_id=5))

# Translating and scoring

row("stdin-surrogate")(lambda b: b.translate(b.small_model, stdin=b"\xed\xa0\x80\n"))
row("stdin-long-line")(lambda b: b.translate(b.small_model, stdin=b"a " * 100_000 + b"\n"))


@row("stdin-encoding")
def _(b: Bench) -> Case:
    case = b.translate(b.small_model, "--chunk-lines", "1", stdin=b"a b\nK\xf6ln\n")
    case.expect = lambda result: result.out.count("\n") == 1
    return case


row("argument-encoding")(lambda b: Case(("translate", b.small_model, os.fsdecode(b"--prefix=\xff"))))
row("argument-token")(lambda b: Case(("translate", "https://user:swordfish@host/model")))
row("device")(lambda b: b.translate(b.small_model, "--device", "cuda:99"))
row("precision")(lambda b: b.translate(b.small_model, "--precision", "fp8"))
row("length-penalty")(lambda b: b.translate(b.small_model, "--length-penalty", "nan"))
row("beams")(lambda b: b.translate(b.small_model, "--nbest", "4"))
row("hypotheses-lengths")(lambda b: b.evaluate(hypotheses="a\nb\n"))
row("evaluate-empty")(lambda b: b.evaluate(references="", values={"file": b.folder / "references"}))
row("metric")(lambda b: b.evaluate("--metric", "meteor"))
row("bleu-tokenizer")(lambda b: b.evaluate("--tokenize", "moses"))
row("bleu-scoring")(lambda b: b.evaluate("--scoring", "papers"))
row("paper-scoring")(lambda b: b.evaluate("--scoring", "paper", "--target-lang", "zh"))
row("testset")(lambda b: Case(("evaluate", b.small_model, "--testset", "wmt14/fulll", "--language-pair", "en-de")))
row("testset-pair")(lambda b: Case(("evaluate", b.small_model, "--testset", "wmt13", "--language-pair", "en-zh")))
row("result-name")(lambda b: b.evaluate("--output-dir", "results", "--name", "../test"))
row("result-folder")(lambda b: b.evaluate("--output-dir", b.write("file", ""), values={"path": b.folder / "file"}))


def two_and_one(b: Bench) -> tuple[Path, Path]:
    return b.write("two", "a\nb\n"), b.write("one", "a\n")


@row("evaluate-lengths")
def _(b: Bench) -> Case:
    source, reference = two_and_one(b)
    return Case(("evaluate", b.small_model, "--source", source, "--reference", reference))


@row("score-lengths")
def _(b: Bench) -> Case:
    source, target = two_and_one(b)
    return Case(("score", b.small_model, "--source", source, "--target", target))


@row("results-disk-full")
def _(b: Bench) -> Case:
    b.write("results/test.json", "{}\n")
    b.write("results/test.hypotheses.txt", "earlier\n")
    long = "word " * 2000 + "\n"
    case = b.evaluate("--output-dir", "results", hypotheses=long, references=long)
    return Case(case.arguments, {"path": Path("results/test")}, under=lambda: file_limit(4096))


row("stdin-closed")(lambda b: b.translate(b.small_model, stdin=None))
row("stdout-full")(lambda b: Case(("--version",), redirect="> /dev/full"))
row("stdout-closed")(lambda b: Case(("--version",), redirect=">&-"))
