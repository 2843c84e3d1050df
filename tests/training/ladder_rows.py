"""Rows of all of the ladder's studies, made up: small, of two seeds, and with the outcomes that theory expects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vanilla_transformer.training.ladder.ablated_models import ABLATIONS
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.distance_task import wilson
from vanilla_transformer.training.ladder.parallelism import COUNTED
from vanilla_transformer.training.ladder.systems import SYSTEMS

SYSTEM_NAMES = tuple(SYSTEMS)
SEEDS = (1, 2)

Row = dict[str, Any]


def interval(score: float, half: float) -> Row:
    return {"low": score - half, "high": score + half, "level": 0.95}


def translated(system: str, seed: int, short: float, long: float, half: float = 1.0) -> Row:
    """A run with BLEU `short` in its bucket of short sources, `long` in the other, and the mean on test."""
    score = (short + long) / 2 + seed / 10
    bleu = {"score": score, "confidence_interval": interval(score, half), "signature": "nrefs:1|tok:13a"}
    chrf = {"score": score + 20, "confidence_interval": interval(score + 20, half), "signature": "nc:6|nw:0"}
    bounds = (({"from": 1, "to": 8, "mean_length": 5.5, "sentences": 61}, short),)
    bounds += (({"from": 9, "to": 31, "mean_length": 14.5, "sentences": 39}, long),)
    return {
        "corpus": "multi30k-en-de",
        "system": system,
        "seed": seed,
        "parameters": 1_402_113,
        "d_model": 128,
        "learning_rate": 0.002,
        "updates": 2400,
        "training_seconds": 150.5 + seed,
        "tokens_per_second": 9876.0 + len(system),
        "sentences_per_second": 43.21,
        "scores": {"bleu": bleu, "chrf": chrf},
        "buckets": [{**bound, "score": at, "confidence_interval": interval(at, half)} for bound, at in bounds],
        "seconds_to_bleu": {"5": 33.3, "30": 111.0 if seed == 1 else None},
        "validations": [{"step": 200, "seconds": 12.5, "validation_loss": 3.3, "validation_bleu": 7.7}],
    }


def answers(reached: int, distances: tuple[int, ...], asked: int = 200) -> list[Row]:
    """Nearly all right up to the distance `reached`, few right behind it."""
    found = []
    for k in distances:
        right = 190 if k <= reached else 13
        low, high = wilson(right, asked)
        found.append({"distance": k, "right": right, "asked": asked, "low": low, "high": high})
    return found


def trained(system: str, seed: int) -> Row:
    return {
        "system": system,
        "seed": seed,
        "learning_rate": 0.003,
        "parameters": 60_123,
        "d_model": 48,
        "updates": 1500,
        "learnt": system == "transformer",
        "seconds": 87.65,
        "validation_loss": 0.4321,
    }


def recalled(system: str, seed: int, reached: int, distances: tuple[int, ...] = (4, 64, 512)) -> Row:
    reach = [{"distance": k, "reach": 0.037 / k, "spread": 0.5} for k in distances]
    row = {"chance": 0.0625, "accuracy": answers(reached, distances), "gradient_before": reach, "gradient_after": reach}
    return {**trained(system, seed), **row}


def timed(system: str, what: str, n: int, seconds: float, device: str = "CPU") -> Row:
    common = {"sentences": 1, "device": device, "threads": 2, "parameters": 4_012_345}
    return {"system": system, "timed": what, "n": n, **common, "seconds": seconds, "tokens_per_second": n / seconds}


def layers(lengths: tuple[int, ...] = (16, 64, 256), widths: tuple[int, ...] = (32, 64)) -> dict[str, Row]:
    """Operations by the formulas: products 4 n^2 d, projections 8 n d^2, and 4 n d^2 for each product of a cell."""
    rows = {}
    products = {"rnn": 1, "gru": 3, "lstm": 4}
    for kind in (*products, "self-attention", "self-attention, plain"):
        for d in widths:
            for n in lengths:
                of_attention = 0 if kind in products else 4 * n * n * d
                flops = 4 * n * d * d * products.get(kind, 2) + of_attention
                row = {"layer": kind, "d": d, "n": n, "flops": flops, "attention_flops": of_attention}
                rows[f"{kind}/{d}/{n}"] = {**row, "peak_bytes": 4 * n * d * (9 + len(kind))}
    return rows


def losses(system: str, asked: int, share: float, loss: float) -> Row:
    found = {"system": system, "asked": asked, "parameters": asked + 321, "embedding_parameters": 99_000}
    found |= {"d_model": 56, "share": share, "pairs": round(29_000 * share), "seed": 1, "updates": 1200}
    return {**found, "validation_loss": loss, "last_validation_loss": loss + 0.125, "training_seconds": 66.6}


def ablated(name: str, loss: float | None, bleu: float | None) -> Row:
    found = {"ablation": name, "seed": 1, "parameters": 2_345_678, "updates": 1600, "diverged": bleu is None}
    return {**found, "validation_loss": loss, "bleu": bleu, "signature": "nrefs:1|tok:13a"}


def studies() -> dict[str, dict[str, Row]]:
    """By study its rows by key."""
    long = {"rnn": 8.0, "lstm": 11.0, "gru": 12.5, "lstm-attention": 27.0, "gru-attention": 28.0, "transformer": 30.0}
    far = {"rnn": 4, "lstm": 64, "gru": 64, "lstm-attention": 512, "gru-attention": 512, "transformer": 512}
    pairs = [(system, seed) for system in SYSTEM_NAMES for seed in SEEDS]
    sentences = (0, 4, 16)
    pronoun: dict[str, Row] = {"lengths": {"lengths": {"en": [18.2, 47.1, 134.8], "zh": [25.3, 71.4, 209.6]}}}
    parallelism, scaling = {}, {}
    for system, seed in pairs:
        row = trained(system, seed)
        for column in ("en", "zh", "en_known", "zh_known"):
            row[column] = answers(16 if system == "transformer" or "known" in column else 0, sentences)
        pronoun[f"{system}/{seed}"] = row
    for system in SYSTEM_NAMES:
        for n in (4, 256):
            for what in COUNTED:
                grows = system != "transformer" or what == "decoding"
                products = 24 + 3 * n * grows
                parallelism[f"{system}/{what}/{n}"] = {"system": system, "counted": what, "n": n, "products": products}
            for what in ("training", "decoding"):
                seconds = 0.0123 * n if system == "transformer" else 0.0111 * n + 0.2
                parallelism[f"{system}/{what}/{n}/seconds"] = timed(system, what, n, seconds)
    for system, slope in (("lstm-attention", 0.05), ("transformer", 0.15)):
        for asked in (250_000, 1_000_000, 4_000_000):
            scaling[f"{system}/{asked}"] = losses(system, asked, 1.0, 20 * asked**-slope)
        for share in (0.0625, 0.25):
            scaling[f"{system}/{share}"] = losses(system, 1_000_000, share, 20 * (share * 1e6) ** -slope)
    scores = dict.fromkeys(ABLATIONS, (3.25, 17.5)) | {"whole": (2.25, 31.25), "without decoder mask": (0.0625, 0.75)}
    scores |= {"without layer norm": (None, None), "one head": (2.125, 31.5)}
    return {
        "translation": {f"{name}/{seed}": translated(name, seed, 33.0, long[name]) for name, seed in pairs},
        "recall": {f"{name}/{seed}": recalled(name, seed, far[name]) for name, seed in pairs},
        "pronoun": pronoun,
        "parallelism": parallelism,
        "complexity": layers(),
        "scaling": scaling,
        "ablations": {name: ablated(name, *scores[name]) for name in ABLATIONS},
    }


def write_studies(folder: Path, rows: Mapping[str, Mapping[str, Row]]) -> None:
    """STUDY.json of each, as a study itself keeps it."""
    for study, by_key in rows.items():
        cells = Cells(folder / f"{study}.json")
        for key, row in by_key.items():
            cells.put(key, row)
