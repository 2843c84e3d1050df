"""Model folders of other formats to ours and back: a whole new folder with its CONVERSION.md, or nothing."""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from transformers.utils import logging as transformers_logging

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.durable import whole_folder, write_text
from vanilla_transformer.training.saved_model import load_model
from vanilla_transformer.training.write_errors import explained

# Format -> its module in modeling/converters. The names are also those of the extras that install what they need.
READERS = {"marian": "marian", "joeynmt": "joeynmt", "ctranslate2": "ctranslate2_reading"}
WRITERS = {"marian": "marian", "ctranslate2": "ctranslate2", "onnx": "onnx"}
NAMES = {"marian": "MarianMTModel", "joeynmt": "JoeyNMT", "ctranslate2": "CTranslate2", "onnx": "ONNX"}
NOTES = "CONVERSION.md"

USAGE = """\
import vanilla_transformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = "."
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
batch = tokenizer(["A sentence.", "Another one."], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
"""


def convert_from(format: str, source: Path, output: Path) -> list[str]:
    """Read a model of another format and write it as a model folder of ours; returns what differs nevertheless.

    Raises UsageError for an unknown format, a missing source or an `output` that exists, UserError where the model
    cannot be expressed (the message lists every reason) or a library is missing.
    """
    reader = _converter(format, READERS, "--from")
    if not source.exists():
        raise UsageError(f"{source}: no such file or folder.")
    _require_new(output)
    with _quiet():
        converted = reader.read(source)
    with _quiet(), _new_folder(output) as folder:
        converted.model.save_pretrained(folder)
        converted.tokenizer.save_pretrained(folder)
        _write_notes(folder, f"Converted from {NAMES[format]}", source, converted.notes, USAGE)
    return converted.notes


def convert_to(format: str, source: str, output: Path) -> list[str]:
    """Write a model of ours, a folder or a Hub id, in another format; returns what differs nevertheless.

    Raises as `convert_from`.
    """
    writer = _converter(format, WRITERS, "--to")
    _require_new(output)
    with _quiet():
        model, tokenizer = load_model(source, device="cpu")
    if not isinstance(model, VanillaTransformerForConditionalGeneration):
        raise UserError(
            f"{source} is a model of type {model.config.model_type}; only our Transformer can be converted."
        )
    with _quiet(), _new_folder(output) as folder:
        notes = writer.write(model, tokenizer, folder)
        _write_notes(folder, f"Converted to {NAMES[format]}", source, notes, writer.USAGE)
    return notes


def _converter(format: str, modules: dict[str, str], option: str) -> ModuleType:
    if format not in modules:
        raise UsageError(f"{option} {format}: choose from {', '.join(modules)}.")
    try:
        return importlib.import_module(f"vanilla_transformer.modeling.converters.{modules[format]}")
    except ModuleNotFoundError as error:
        raise UserError(
            f'{option} {format} needs {error.name}: pip install "vanilla-transformer[{format}]".'
        ) from error


def _require_new(output: Path) -> None:
    if output.exists() and any(output.iterdir() if output.is_dir() else [output]):
        raise UsageError(f"{output} already exists; give the converted model a new folder.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and the exporter's remarks about packages that it does not find."""
    shown, exporter = transformers_logging.is_progress_bar_enabled(), logging.getLogger("torch.onnx")
    level = exporter.level
    transformers_logging.disable_progress_bar()
    exporter.setLevel(logging.ERROR)
    try:
        yield
    finally:
        exporter.setLevel(level)
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `output` when all of it is written."""
    with explained(f"The converted model {output}", "Free some space or give another folder."):
        with whole_folder(output) as folder:
            yield folder


def _write_notes(folder: Path, what: str, source: str | Path, notes: list[str], usage: str) -> None:
    """Say in the folder what it is, what differs from the original, and how it is used."""
    lines = [
        f"# {what}",
        "",
        f"From `{Path(source).name}`, by vanilla-transformer {version('vanilla-transformer')}.",
        "",
        *([*(f"- {note}" for note in notes), ""] if notes else []),
        "In this folder:",
        "",
        "```python",
        *usage.splitlines(),
        "```",
        "",
    ]
    write_text(folder / NOTES, "\n".join(lines))
