"""JoeyNMT on Multi30k by its own command line, in an environment of its own: a side of multi30k_peers.py.

Model, rates and tokens of an update are those of multi30k-published.yaml, the vocabulary is made of the same BPE codes.
JoeyNMT has no limit in minutes: it is stopped from outside, and its best checkpoint by dev BLEU translates the test
set. Its validations decode greedily; the seconds that they take are not counted.
"""

import gzip
import json
import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from peer_environments import python_of
from result_files import ROOT

from vanilla_transformer.training.text_files import read_lines

SPENT = re.compile(r"(?:generation|evaluation): ([\d.]+)\[?s")
SECONDS_BETWEEN_LOOKS = 5


def run(folder: Path, settings: dict[str, Any]) -> None:
    """Leave curve.json, test2016.hypotheses.txt and system.json in the folder."""
    python = python_of("joeynmt", ROOT / ".bench")
    config = _write_data(folder, settings)
    log = (folder / "train.out").open("w")
    started = time.perf_counter()
    training = subprocess.Popen(
        [python, "-m", "joeynmt", "train", config, "--skip-test"], stdout=log, stderr=subprocess.STDOUT, cwd=folder
    )
    joey_log = folder / "model" / "train.log"
    curve: list[dict[str, float]] = []
    begun = 0.0
    while training.poll() is None:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        text = joey_log.read_text(encoding="utf-8") if joey_log.exists() else ""
        if not begun and "EPOCH 1" in text:
            begun = time.perf_counter()
        validating = sum(map(float, SPENT.findall(text)))
        minutes = (time.perf_counter() - begun - validating) / 60 if begun else 0.0
        for step, bleu in _validations(folder / "model" / "validations.txt")[len(curve) :]:
            curve.append({"step": step, "minutes": minutes, "bleu": bleu})
            print(curve[-1], flush=True)
        if minutes > settings["minutes"] and curve:
            training.terminate()
    training.wait()
    if not curve:
        last = (folder / "train.out").read_text(encoding="utf-8")[-2000:]
        raise SystemExit(f"JoeyNMT ended before its first validation:\n{last}")
    with (folder / "test.in").open("rb") as source, (folder / "test2016.hypotheses.txt").open("wb") as out:
        subprocess.run([python, "-m", "joeynmt", "translate", config], stdin=source, stdout=out, cwd=folder, check=True)
    found = re.search(r"Total params: ([\d,]+)", joey_log.read_text(encoding="utf-8"))
    system = {
        "system": "JoeyNMT 2.3.0",
        "updates": curve[-1]["step"],
        "minutes": curve[-1]["minutes"],
        "wall_minutes": (time.perf_counter() - started) / 60,
        "parameters": int(found[1].replace(",", "")) if found else None,
    }
    (folder / "curve.json").write_text(json.dumps(curve, indent=1), encoding="utf-8")
    (folder / "system.json").write_text(json.dumps(system, indent=1), encoding="utf-8")


def _validations(path: Path) -> list[tuple[int, float]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = (re.search(r"Steps: (\d+).*?bleu: ([\d.]+)", line) for line in lines)
    return [(int(match[1]), float(match[2])) for match in found if match]


def _write_data(folder: Path, settings: dict[str, Any]) -> Path:
    """The texts, the codes and the vocabulary in plain files, and JoeyNMT's configuration."""
    for split, limit in (("train", settings["limit"]), ("dev", settings["dev_limit"]), ("test", settings["dev_limit"])):
        for lang, file in zip(("en", "de"), settings[split], strict=True):
            lines = read_lines(file)[:limit]
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "test.in").write_bytes((folder / "test.en").read_bytes())
    codes = folder / "codes"
    codes.write_bytes(gzip.decompress(Path(settings["codes"]).read_bytes()))
    pieces = Counter(piece for file in settings["segmented"] for line in read_lines(file) for piece in line.split())
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece, _ in pieces.most_common()), encoding="utf-8")
    side = {
        "max_length": 250,
        "level": "bpe",
        "voc_file": str(vocabulary),
        "tokenizer_type": "subword-nmt",
        "tokenizer_cfg": {"codes": str(codes), "num_merges": 10000, "pretokenizer": "none"},
    }
    layers = {
        "type": "transformer",
        "num_layers": 4,
        "num_heads": 4,
        "embeddings": {"embedding_dim": 128, "scale": True, "dropout": 0.3},
        "hidden_size": 128,
        "ff_size": 256,
        "dropout": 0.3,
        "layer_norm": "post",
        "activation": "relu",
    }
    config = {
        "name": "multi30k",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "fp16": False,  # its own loop has it on GPUs alone
        "random_seed": settings["seed"],
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "dev"),
            "test": str(folder / "test"),
            "dataset_type": "plain",
            "src": {"lang": "en", **side},
            "trg": {"lang": "de", **side},
        },
        "testing": {
            "load_model": str(folder / "model" / "best.ckpt"),
            "beam_size": 5,
            "beam_alpha": 1.0,
            "batch_size": 4096,
            "batch_type": "token",
            "max_output_length": 100,
            "eval_metrics": ["bleu"],
            "sacrebleu_cfg": {"tokenize": "none"},
        },
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": 0.005,
            "learning_rate_min": 1e-9,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 2000,
            "label_smoothing": 0.1,
            "loss": "crossentropy",
            "normalization": "tokens",
            "batch_type": "token",
            "batch_size": 4096,
            "batch_multiplier": 2,
            "epochs": 1000,
            "updates": settings["max_steps"],
            "validation_freq": settings["eval_every"],
            "logging_freq": settings["eval_every"] // 2,  # must divide the other
            "early_stopping_metric": "bleu",
            "keep_best_ckpts": 1,
            "overwrite": True,
            "print_valid_sents": [0],
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": layers,
            "decoder": layers,
        },
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path
