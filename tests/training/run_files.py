"""The files of a run that has ended, with figures that a test knows: what a model card is made of."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

BLEU = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
CHRF = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
CONFIG = {
    "model_type": "vanilla_transformer",
    "source_lang": "en",
    "target_lang": "de",
    "num_encoder_layers": 6,
    "num_decoder_layers": 3,
    "d_model": 512,
    "d_ff": 2048,
    "num_heads": 8,
    "vocab_size": 37000,
}
RECIPE = {
    "data": {"corpus": "/home/me/secret-project/multi30k", "source_lang": "en", "target_lang": "de", "max_length": 99},
    "tokenizer": {"vocab_size": 37000, "path": "/home/me/tokenizers/joint"},
    "training": {"seed": 3, "warmup_steps": 4321},
}
MANIFEST = {
    "seed": 3,
    "parameters": 12,
    "data": {
        "counters": {
            "train": {"read": 29001, "kept": 29000, "empty": 1, "duplicate": 0},
            "test": {"read": 1000, "kept": 1000},
        },
        "sources": [
            {"split": "train", "file": "/home/me/secret-project/multi30k/train.en", "sha256": "a" * 64, "lines": 29001},
            {"split": "test", "file": "/home/me/secret-project/multi30k/test.en", "sha256": "b" * 64, "lines": 1000},
        ],
        "tokens": {"source": 400_000, "target": 410_000},
        "vocabulary": {"size": 37000, "sha256": "c" * 64},
    },
    "code": {"version": "0.1.0", "commit": "d" * 40, "changed": True},
    "libraries": {"torch": "2.13.0", "sacrebleu": "2.6.0"},
    "hardware": {
        "platform": "Linux-6.18",
        "processor": "AMD EPYC",
        "threads": 2,
        "accelerators": [],
        "processes": 1,
        "precision": "no",
    },
    "training_seconds": 510.0,
    "tokens_seen": {"source": 1_810_370, "target": 1_554_896},
    "sessions": [
        {"started": "2026-11-30T19:01:17+00:00", "last_step": 800, "energy_joules": 3_000_000.0},
        {"started": "2026-12-01T07:00:00+00:00", "last_step": 1578, "energy_joules": 600_000.0},
    ],
}
SCORES = {
    "bleu": {
        "score": 27.896,
        "signature": BLEU,
        "confidence_interval": {"low": 26.504, "high": 29.3, "level": 0.95, "resamples": 1000, "seed": "12345"},
    },
    "chrf": {"score": 55.0, "signature": CHRF},
}


def write_run(run: Path, **changes: Any) -> Path:
    """RUN with its files, and RUN/final of twelve weights, which is returned; `changes` are other contents by name."""
    final = run / "final"
    final.mkdir(parents=True)
    weights = {"a": np.zeros((2, 5), np.float32), "b": np.ones(2, np.float32)}
    save_file(weights, final / "model.safetensors", {"format": "pt"})
    (final / "config.json").write_text(json.dumps(changes.get("config", CONFIG)))
    (final / "generation_config.json").write_text(json.dumps({"max_new_tokens_over_input": 50}))
    (run / "recipe.yaml").write_text(yaml.safe_dump(changes.get("recipe", RECIPE)))
    (run / "manifest.json").write_text(json.dumps(changes.get("manifest", MANIFEST)))
    write_result(final, "test", split="test", **changes.get("result", {}))
    return final


def write_result(final: Path, name: str, **fields: Any) -> None:
    """RUN/results/NAME.json, as `evaluate_model` writes it of the weights in `final`."""
    result = {
        "name": name,
        "source_lang": "en",
        "target_lang": "de",
        "scores": SCORES,
        "sentences": 1000,
        "empty_hypotheses": 0,
        "sha256": {"hypotheses": "e" * 64, "references": ["f" * 64]},
        "weights_sha256": hashlib.sha256((final / "model.safetensors").read_bytes()).hexdigest(),
        "decoding": {"num_beams": 4, "length_penalty": 0.6},
        "precision": "float32",
    }
    folder = final.parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result | fields))


def on_the_hub(corpus: str = "org/pairs", **data: Any) -> dict[str, Any]:
    """Recipe and manifest of a run whose corpus is a data set on the Hub."""
    sources = [
        {"split": split, "file": f"hub/{corpus}/{name}@main", "sha256": "a" * 64, "lines": 10}
        for split, name in (("train", "train"), ("dev", "validation"), ("test", "newstest"))
    ]
    recipe = RECIPE | {"data": {"corpus": corpus, "name": None, "revision": None} | data}
    return {"recipe": recipe, "manifest": MANIFEST | {"data": {"counters": {}, "sources": sources}}}
