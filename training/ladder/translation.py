"""Every rung translates: one corpus, vocabulary, loop, decoding and BLEU, and one number of parameters."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.training.evaluation import corpus_scores
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.corpus_runs import (
    SharedCorpus,
    hypotheses_on_test,
    log_rows,
    merged,
    own_rate,
    rate_problems,
    scores_on_test,
    seconds_to,
    section_problems,
    trained,
)
from vanilla_transformer.training.ladder.exhibits import Plot, Series, Table, Value
from vanilla_transformer.training.ladder.systems import SYSTEMS, System, count_parameters, matched_config

TITLE = "Translation"
# Test sets drawn for the interval of a bucket's BLEU.
RESAMPLES = 300


@dataclass(frozen=True)
class TranslationStudy:
    """Corpora, the recipe that all systems are trained by, and what is looked at."""

    # By name the recipe sections of each corpus: data, tokenizer, and what differs from the sections below.
    corpora: dict[str, Any]
    # Sections of the recipe that all runs share; log_every and eval_every say how finely time to BLEU is known.
    training: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    # Highest rates of systems, by name, that learn better with another one than training.learning_rate.
    learning_rates: dict[str, Any] = field(default_factory=dict)
    # The Transformer's fields, and those that all recurrent systems have besides.
    transformer: dict[str, Any] = field(default_factory=dict)
    recurrent: dict[str, Any] = field(default_factory=dict)
    # Parameters of every system, within 5%; null: as many as the Transformer of those fields has.
    parameters: int | None = None
    # Each a run of its own: first weights, dropout and order of batches.
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    # BLEU on dev whose first validation is looked for.
    target_bleu: list[float] = field(default_factory=lambda: [5.0, 10.0, 20.0, 30.0])
    # Test sentences are cut into buckets at these shares of them, by length of the source in word pieces.
    length_quantiles: list[float] = field(default_factory=lambda: [0.25, 0.5, 0.75, 0.95])

    def problems(self) -> list[str]:
        found = [] if self.corpora else ["corpora: name at least one"]
        for name, own in self.corpora.items():
            if not isinstance(own, Mapping) or not all(isinstance(section, Mapping) for section in own.values()):
                found.append(f"corpora.{name}: must map data, tokenizer, ... to their keys")
            else:
                mapping = merged(self.sections(name), {"model": {"preset": None, **self.transformer}})
                found += [f"corpora.{name}.{problem}" for problem in section_problems(mapping)]
        found += rate_problems(self.learning_rates)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            found.append(f"seeds = {self.seeds}: name at least one, and none twice")
        if self.parameters is not None and self.parameters < 1:
            found.append(f"parameters = {self.parameters}: must be at least 1")
        shares = self.length_quantiles
        if shares != sorted(set(shares)) or not all(0 < share < 1 for share in shares):
            found.append(f"length_quantiles = {shares}: must rise between 0 and 1")
        return found

    def sections(self, corpus: str) -> dict[str, dict[str, Any]]:
        """The recipe of the runs on a corpus, but for the model."""
        shared = {"training": self.training, "generation": self.generation, "evaluation": self.evaluation}
        return merged(shared, self.corpora[corpus])

    def decided(self) -> dict[str, Any]:
        """What a finished cell depends on: a seed may be added later, and the data may lie elsewhere."""
        settings = asdict(self)
        del settings["seeds"]
        for sections in settings["corpora"].values():
            sections["data"]["corpus"] = Path(sections["data"]["corpus"]).name
        return settings


def run(settings: TranslationStudy, systems: Sequence[System], folder: Path) -> None:
    """Train and score every system, seed and corpus that folder/translation.json lacks, in runs/CORPUS/SYSTEM-seedN."""
    cells = Cells(folder / "translation.json", settings.decided())
    for name in settings.corpora:
        keys = {(system, seed): f"{name}/{system.name}/seed {seed}" for seed in settings.seeds for system in systems}
        missing = {key: text for key, text in keys.items() if not cells.done(text)}
        if not missing:
            continue
        runs = folder / "runs" / name
        corpus = SharedCorpus.of(settings.sections(name), runs)
        configs = {system: _config(system, settings, corpus) for system, _ in missing}  # what is wrong, before the work
        for (system, seed), key in missing.items():
            place = runs / f"{system.name}-seed{seed}"
            row = _scored(corpus, system, configs[system], place, seed, settings)
            cells.put(key, {"corpus": name, "system": system.name, **row, "run": str(place.relative_to(folder))})


def _config(system: System, settings: TranslationStudy, corpus: SharedCorpus) -> Any:
    size, fields = len(corpus.tokenizer), corpus.special_tokens
    base = VanillaTransformerConfig(**{**settings.transformer, "vocab_size": size, **fields})
    parameters = settings.parameters or count_parameters(base)
    return matched_config(
        system, parameters, vocab_size=size, base=settings.transformer, recurrent=settings.recurrent, **fields
    )


def _scored(
    corpus: SharedCorpus, system: System, config: Any, place: Path, seed: int, settings: TranslationStudy
) -> dict[str, Any]:
    """Train one model and tell how good and how fast it is."""
    run = trained(corpus, config, place, training={"seed": seed, **own_rate(settings.learning_rates, system)})
    result, rows = scores_on_test(run), log_rows(run)
    speeds = [row["tokens_per_second"] for row in rows]
    validated = [row for row in rows if "validation_loss" in row]
    return {
        "seed": seed,
        "parameters": count_parameters(config),
        "d_model": config.d_model,
        "learning_rate": max(row["learning_rate"] for row in rows),
        "updates": rows[-1]["step"],
        "training_seconds": rows[-1]["seconds"],
        "tokens_per_second": statistics.median(speeds),
        "decoding": result["decoding"],
        "sentences_per_second": result["sentences_per_second"],
        "scores": {
            name: {key: score[key] for key in ("score", "confidence_interval", "signature") if key in score}
            for name, score in result["scores"].items()
        },
        "buckets": _buckets(corpus, hypotheses_on_test(run), settings.length_quantiles, result["target_lang"]),
        "seconds_to_bleu": {f"{bleu:g}": seconds_to(rows, bleu) for bleu in settings.target_bleu},
        "validations": [
            {"step": row["step"], "seconds": row["seconds"]}
            | {name: row[name] for name in ("validation_loss", "validation_bleu") if name in row}
            for row in validated
        ],
    }


def _buckets(corpus: SharedCorpus, hypotheses: list[str], shares: list[float], lang: str) -> list[dict[str, Any]]:
    """BLEU of the test sentences by their source's length in word pieces, </s> not counted."""
    sources, references = corpus.pairs("test")
    lengths = np.array([len(ids) - 1 for ids in corpus.tokenizer(sources)["input_ids"]])
    tops = sorted({*np.quantile(lengths, shares, method="lower").tolist(), int(lengths.max())})
    found, bottom = [], 0
    for top in tops:
        chosen = np.flatnonzero((lengths > bottom) & (lengths <= top))
        if len(chosen):
            lines = [[texts[i] for i in chosen] for texts in (hypotheses, references)]
            bleu = corpus_scores(*lines, target_lang=lang, metrics=["bleu"], resamples=RESAMPLES)["bleu"]
            mean = round(float(lengths[chosen].mean()), 2)
            bounds = {"from": bottom + 1, "to": top, "mean_length": mean, "sentences": len(chosen)}
            found.append(bounds | {key: bleu[key] for key in ("score", "confidence_interval") if key in bleu})
        bottom = top
    return found


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Of each corpus: the test scores, BLEU by source length, and what it cost."""
    made = []
    for corpus, systems in _by_corpus(rows).items():
        made += [_scores_table(corpus, systems), _length_table(corpus, systems), _cost_table(corpus, systems)]
    return made


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Of each corpus: BLEU against source length, and BLEU on dev against training time."""
    made = []
    for corpus, systems in _by_corpus(rows).items():
        by_length, by_time = [], []
        for system, runs in systems.items():
            buckets = _buckets_of(runs)
            lengths, scores, spreads = zip(*((b["mean_length"], b["score"], b["spread"]) for b in buckets), strict=True)
            by_length.append(Series(system, lengths, scores, spreads))
            curve = [one for one in runs[0]["validations"] if "validation_bleu" in one]
            minutes, bleu = [one["seconds"] / 60 for one in curve], [one["validation_bleu"] for one in curve]
            by_time.append(Series(system, minutes, bleu))
        title = f"{corpus}: translations by length of the source"
        note = "Error bars: half the 95% interval of the bootstrap over a bucket's sentences, mean of the seeds."
        length_label, seed = "word pieces of the source, mean of a bucket", next(iter(systems.values()))[0]["seed"]
        made.append(Plot(f"{corpus}-length", title, length_label, "BLEU", by_length, note=note))
        title = f"{corpus}: BLEU on dev while training, seed {seed}"
        made.append(Plot(f"{corpus}-time", title, "minutes of updates", "BLEU on dev", by_time))
    return made


def _by_corpus(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    """The runs of each corpus by system, in the ladder's order."""
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in sorted(rows, key=lambda row: (list(SYSTEMS).index(row["system"]), row["seed"])):
        found.setdefault(row["corpus"], {}).setdefault(row["system"], []).append(row)
    return {corpus: found[corpus] for corpus in dict.fromkeys(row["corpus"] for row in rows)}


def _scores_table(corpus: str, systems: Mapping[str, list[Mapping[str, Any]]]) -> Table:
    metrics = {metric: score["signature"] for run in systems.values() for metric, score in run[0]["scores"].items()}
    names = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
    columns = ["system", "parameters", "d_model", "highest rate"]
    columns += [
        text for metric in metrics for text in (names.get(metric, metric), f"95% of {names.get(metric, metric)}")
    ]
    lines = []
    for system, runs in systems.items():
        line: list[Value] = [system, runs[0]["parameters"], runs[0]["d_model"], runs[0]["learning_rate"]]
        for metric in metrics:
            scores = [run["scores"][metric] for run in runs]
            line += [f"{statistics.fmean(score['score'] for score in scores):.2f}", _interval(scores)]
        lines.append([*line, " ".join(f"{run['scores']['bleu']['score']:.2f}" for run in runs)])
    note = (
        "Scores on test, means over the seeds; the intervals are sacreBLEU's bootstrap over the test sentences, their "
        "ends averaged over the seeds, and say nothing of other seeds: the last column does. "
    )
    note += "; ".join(f"{names.get(metric, metric)}: {signature}" for metric, signature in metrics.items()) + "."
    return Table(f"{corpus}: test scores", [*columns, "BLEU of each seed"], lines, note)


def _length_table(corpus: str, systems: Mapping[str, list[Mapping[str, Any]]]) -> Table:
    buckets = next(iter(systems.values()))[0]["buckets"]
    columns = [f"{bucket['from']}–{bucket['to']} ({bucket['sentences']})" for bucket in buckets]
    lines = [
        [system, *(f"{bucket['score']:.1f} ±{bucket['spread']:.1f}" for bucket in _buckets_of(runs))]
        for system, runs in systems.items()
    ]
    note = (
        "Columns: word pieces of the source (number of test sentences). ± is half the 95% interval of the bootstrap "
        "over those sentences. BLEU of different buckets is not comparable; the systems in one bucket are."
    )
    return Table(f"{corpus}: BLEU by source length", ["system", *columns], lines, note)


def _cost_table(corpus: str, systems: Mapping[str, list[Mapping[str, Any]]]) -> Table:
    targets = list(next(iter(systems.values()))[0]["seconds_to_bleu"])
    columns = ["system", "updates", "training tokens/s", "training minutes", "decoded sentences/s"]
    lines = []
    for system, runs in systems.items():
        line: list[Value] = [system, round(_mean(runs, "updates")), round(_mean(runs, "tokens_per_second"))]
        line += [f"{_mean(runs, 'training_seconds') / 60:.2f}", f"{_mean(runs, 'sentences_per_second'):.1f}"]
        for target in targets:
            reached = [run["seconds_to_bleu"][target] for run in runs if run["seconds_to_bleu"][target] is not None]
            minutes = f"{statistics.fmean(reached) / 60:.2f}" if reached else None
            some = f" ({len(reached)} of {len(runs)} seeds)" if reached and len(reached) < len(runs) else ""
            line.append(f"{minutes}{some}" if minutes else None)
        lines.append(line)
    note = (
        "Means over the seeds. Tokens of source and target; minutes are those of updates alone, without validation and "
        "checkpoints; to BLEU: minutes to the first validation on dev that reached it, a dash where none did."
    )
    return Table(f"{corpus}: cost", [*columns, *(f"to BLEU {target}" for target in targets)], lines, note)


def _buckets_of(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """BLEU and half its interval in each bucket, means over the runs."""
    return [
        {
            "mean_length": several[0]["mean_length"],
            "score": statistics.fmean(bucket["score"] for bucket in several),
            "spread": statistics.fmean(_half_width(bucket) for bucket in several),
        }
        for several in zip(*(run["buckets"] for run in runs), strict=True)
    ]


def _half_width(score: Mapping[str, Any]) -> float:
    """Half a score's interval; 0 for so few sentences that there is none."""
    interval = score.get("confidence_interval")
    return (interval["high"] - interval["low"]) / 2 if interval else 0.0


def _interval(scores: Sequence[Mapping[str, Any]]) -> str | None:
    intervals = [score["confidence_interval"] for score in scores if "confidence_interval" in score]
    if not intervals:
        return None
    low, high = (statistics.fmean(interval[end] for interval in intervals) for end in ("low", "high"))
    return f"{low:.1f}–{high:.1f}"


def _mean(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(run[name] for run in runs)
