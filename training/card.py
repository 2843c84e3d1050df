"""The model card: model_card.md filled from the files of a run, and nothing that no file says."""

import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from jinja2 import Environment, StrictUndefined

from vanilla_transformer.training.card_metadata import METRICS, card_data, name_of_test_set
from vanilla_transformer.training.durable import write_text
from vanilla_transformer.training.model_facts import ModelFacts
from vanilla_transformer.training.recipe_yaml import write_mapping
from vanilla_transformer.training.write_errors import explained

CARD = "README.md"
TEMPLATE = Path(__file__).with_name("model_card.md")
# A card without it has been taken over by its reader, and stays as it is.
MARK = "Rendered by vanilla-transformer, and again by every push. Delete this line to keep your own edits."

# Columns of the table of sizes, and the config's fields behind them.
SIZES = {"d_model": "d_model", "d_ff": "d_ff", "heads": "num_heads", "cell": "cell"}


def write_card(facts: ModelFacts, repo_id: str | None = None, license: str | None = None) -> None:
    """Render the card of a model folder to its README.md, unless that has become its user's own.

    `repo_id` is what the card's code loads; without one, the folder. A `license` that is not given is the one of the
    card that is there.
    """
    path = facts.folder / CARD
    if path.is_file():
        before = path.read_text(encoding="utf-8")
        if MARK not in before:
            return
        license = license or ModelCard(before, ignore_metadata_errors=True).data.get("license")
    with explained(f"The model card {path}", "Nothing else is missing; `vanilla-transformer push` renders it again."):
        write_text(path, render_card(facts, repo_id, license))


def render_card(facts: ModelFacts, repo_id: str | None = None, license: str | None = None) -> str:
    """The card of these facts: Markdown behind a YAML block that huggingface_hub reads back."""
    folder = facts.folder.resolve()
    name = Path(repo_id).name if repo_id else (folder.parent if facts.recipe else folder).name
    data = facts.manifest.get("data", {})
    counters = data.get("counters", {})
    pair = [facts.config.get("source_lang"), facts.config.get("target_lang")]
    templates = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return templates.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        metadata=card_data(facts, name, license).to_yaml(),
        mark=MARK,
        name=name,
        model=json.dumps(repo_id or str(facts.folder), ensure_ascii=False),
        pair=pair if all(pair) else None,
        base_model=facts.base_model,
        kind=_kind(facts.config),
        architecture=_architecture(facts),
        pairs_kept=f"{kept:,}" if (kept := counters.get("train", {}).get("kept")) else None,
        max_length=facts.recipe.get("data", {}).get("max_length"),
        cap=facts.generation.get("max_new_tokens_over_input"),
        corpus=facts.corpus,
        corpus_url=f"https://huggingface.co/datasets/{facts.hub_corpus}" if facts.hub_corpus else None,
        tokens=_tokens(data),
        sources=_sources(facts.sources),
        counters=_counters(counters),
        recipe=_recipe(facts),
        training=_training(facts),
        results=_results(facts),
        measured=[_measured(facts, result) for result in facts.results],
        has_bleu=any("bleu" in result["scores"] for result in facts.results),
        version=version("vanilla-transformer"),
    )


def _kind(config: dict[str, Any]) -> str:
    """What the model is, as the object of "trained with"."""
    paper = "[Attention Is All You Need](https://arxiv.org/abs/1706.03762) (Vaswani et al. 2017)"
    if config.get("model_type") == "vanilla_transformer":
        return f"the Transformer of {paper}"
    if "cell" in config:
        attention = "without attention" if config["attention"] == "none" else f"with {config['attention']} attention"
        return f"a recurrent encoder-decoder ({config['cell']}, {attention}), for comparison with the model of {paper}"
    return f"a {config['model_type']} model"


def _architecture(facts: ModelFacts) -> str | None:
    config = facts.config
    cells = {label: config[key] for label, key in SIZES.items() if key in config}
    cells |= {"vocabulary": f"{config['vocab_size']:,}"} if "vocab_size" in config else {}
    if "num_encoder_layers" in config:
        cells = {"layers": f"{config['num_encoder_layers']} + {config['num_decoder_layers']}"} | cells
    if facts.parameters is not None:
        cells["parameters"] = f"{facts.parameters:,}"
    return _table(cells, [cells.values()]) if cells else None


def _tokens(data: dict[str, Any]) -> str | None:
    """What was learned from, in tokens; a streamed corpus is never counted."""
    if not data.get("tokens"):
        return None
    vocabulary, tokens = data["vocabulary"], data["tokens"]
    return (
        f"The training pairs are {tokens['source']:,} source and {tokens['target']:,} target tokens of a vocabulary of "
        f"{vocabulary['size']:,} (tokenizer.json, SHA-256 `{vocabulary['sha256']}`)."
    )


def _sources(sources: Sequence[dict[str, Any]]) -> str | None:
    """The corpus file by file; of a local file the name alone, since its folder says nothing to a reader."""
    if not sources:
        return None
    rows = []
    for source in sources:
        # A Hub split and a named corpus have labels and no folder.
        file = (
            source["file"] if source["file"].startswith("hub/") or "(" in source["file"] else Path(source["file"]).name
        )
        lines = "" if source["lines"] is None else f"{source['lines']:,}"
        rows.append([source["split"], file, lines, f"`{source['sha256']}`" if source["sha256"] else ""])
    return _table(["split", "file", "lines", "SHA-256"], rows)


def _counters(counters: dict[str, dict[str, int]]) -> str | None:
    """One column a reason for which any pair was dropped."""
    if not counters:
        return None
    names = {name: any(counts.get(name) for counts in counters.values()) for each in counters.values() for name in each}
    shown = [name for name, counted in names.items() if counted or name in ("read", "kept")]
    rows = [[split, *(f"{counts.get(name, 0):,}" for name in shown)] for split, counts in counters.items()]
    return _table(["split", *(name.replace("_", " ") for name in shown)], rows)


def _recipe(facts: ModelFacts) -> str | None:
    """The resolved recipe without the folders of the machine that trained."""
    if not facts.recipe:
        return None
    recipe = {section: dict(keys) for section, keys in facts.recipe.items()}
    recipe["data"]["corpus"] = facts.corpus
    if recipe.get("tokenizer", {}).get("path"):
        recipe["tokenizer"]["path"] = Path(recipe["tokenizer"]["path"]).name
    if "finetuning" in recipe:
        recipe["finetuning"]["model"] = facts.base_model
    return write_mapping(recipe).rstrip()


def _training(facts: ModelFacts) -> list[str]:
    """How long, on what and by what; only with the recipe, which says what was done."""
    manifest = facts.manifest
    lines = []
    if facts.updates is not None:
        seen = manifest.get("tokens_seen")
        tokens = f" on {seen['source']:,} source and {seen['target']:,} target tokens" if seen else ""
        lines.append(f"{facts.updates:,} updates{tokens}, seed {manifest['seed']}")
    if seconds := manifest.get("training_seconds"):
        lines.append(f"Wall time: {_duration(seconds)}")
    if hardware := manifest.get("hardware"):
        where = ", ".join(hardware["accelerators"]) or f"{hardware['threads']} threads of {hardware['processor']}"
        processes = f", {hardware['processes']} processes" if hardware["processes"] > 1 else ""
        lines.append(f"Hardware: {where}{processes}; {hardware['platform']}; mixed precision: {hardware['precision']}")
    if (joules := facts.energy_joules) is not None:
        lines.append(f"Energy of the processors while training: {joules / 3.6e6:.3g} kWh, by their own counters (RAPL)")
    if code := manifest.get("code"):
        commit = f", commit {code['commit']}" if code["commit"] else ""
        changed = " and changes that are in no commit" if code.get("changed") else ""
        lines.append(f"Code: vanilla-transformer {code['version']}{commit}{changed}")
    if libraries := manifest.get("libraries"):
        lines.append("Libraries: " + ", ".join(f"{name} {release}" for name, release in libraries.items()))
    if sessions := manifest.get("sessions"):
        lines.append(f"Begun on {sessions[0]['started'][:10]}")
    return lines


def _results(facts: ModelFacts) -> str | None:
    if not facts.results:
        return None
    rows = []
    for result in facts.results:
        for metric, score in result["scores"].items():
            interval = score.get("confidence_interval")
            between = f"{interval['low']:.2f} to {interval['high']:.2f}" if interval else ""
            signature = score["signature"].replace("|", "\\|")
            measured = [name_of_test_set(facts, result), METRICS[metric][1], f"{score['score']:.2f}"]
            rows.append([*measured, between, f"`{signature}`"])
    return _table(["test set", "metric", "score", "95% interval", "signature"], rows)


def _measured(facts: ModelFacts, result: dict[str, Any]) -> str:
    """The circumstances of one test set's scores."""
    decoding = ", ".join(f"{name} {value}" for name, value in result["decoding"].items())
    said = [
        f"{name_of_test_set(facts, result)}: {result['sentences']:,} sentences, {result['empty_hypotheses']:,} of them "
        f"translated to nothing, decoded in {result['precision']} ({decoding})."
    ]
    intervals = [score["confidence_interval"] for score in result["scores"].values() if "confidence_interval" in score]
    if intervals:
        said.append(f"Intervals: {intervals[0]['resamples']:,} bootstrap resamples, seed {intervals[0]['seed']}.")
    digests = result["sha256"]
    references = ", ".join(f"`{digest}`" for digest in digests["references"])
    said.append(f"SHA-256 of the translations `{digests['hypotheses']}`, of the references {references}.")
    return " ".join(said)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 120 else f"{minutes:.1f} minutes"


def _table(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
