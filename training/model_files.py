"""What a model folder must hold, looked at before any of it is loaded."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.checkpoint import TRAINING_FILES

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def is_path(name: str) -> bool:
    """Whether a model's name means a place on the disk: it exists there, or no repo of the Hub can have this name."""
    return Path(name).exists() or not name.strip() or name.startswith((".", "/", "~")) or name.count("/") > 1


def require_model_folder(folder: Path) -> None:
    """Raise UserError, naming the file, where `folder` is none with a config and weights in safetensors, all readable.

    transformers goes on without some files that it cannot read, and does not name others. Weights that are pickled are
    refused: loading such a file can run any code.
    """
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder of the model, such as RUN/final.")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder.")
    if (folder / "adapter_config.json").is_file():
        raise UserError(f"{folder} holds an adapter alone; give the RUN/final beside it, which has it merged in.")
    if not (folder / "config.json").is_file():
        hint = f"; did you mean {folder / 'final'}?" if (folder / "final" / "config.json").is_file() else "."
        raise UserError(f"{folder} is not a model folder: it has no config.json{hint}")
    for path in sorted(path for path in folder.glob("*.json") if path.name not in TRAINING_FILES):
        _require_json(path)
    weights = [path for path in sorted(folder.glob("*.safetensors")) if path.name not in TRAINING_FILES]
    for path in weights:
        _require_tensors(path)
    if weights:
        return
    pickles = sorted(path for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{pickles[0]} is refused: a pickled file can run any code when it is loaded. Where you trust it, load it "
            "yourself and store the weights with save_pretrained, as model.safetensors."
        )
    raise UserError(f"{folder} has no weights: there is no model.safetensors in it.")


def _require_json(path: Path) -> None:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); copy it again.") from None
    if path.name == "config.json" and not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; give the folder of a model.")


def _require_tensors(path: Path) -> None:
    try:
        with safe_open(path, framework="pt"):  # reads the header, which says how long the file is
            pass
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is cut short or damaged ({error}); copy it again.") from None
