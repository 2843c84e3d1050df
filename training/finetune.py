"""Fine-tuning a model of ours with transformers' Seq2SeqTrainer: `vanilla-transformer finetune`."""

import copy
import json
import logging
import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from vanilla_transformer.training.base_model import load_base
from vanilla_transformer.training.card import write_card
from vanilla_transformer.training.corpus import Corpus, load_corpus
from vanilla_transformer.training.durable import whole_folder
from vanilla_transformer.training.evaluation import evaluate_model
from vanilla_transformer.training.finetune_data import training_pairs, validation_pairs
from vanilla_transformer.training.finetune_recipe import FinetuneRecipe
from vanilla_transformer.training.finetune_trainer import FinetuneTrainer, Progress, make_trainer, newest_whole, step_of
from vanilla_transformer.training.folder_lock import locked
from vanilla_transformer.training.lora import merged, require_peft, save_adapter, with_adapter
from vanilla_transformer.training.manifest import RunManifest
from vanilla_transformer.training.model_facts import read_facts
from vanilla_transformer.training.model_folder import save_model
from vanilla_transformer.training.processes import hold_group, joined_processes, lost_process_said, on_main, require_all
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.write_errors import explained

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finetuned:
    """What a fine-tuning left: RUN/final, RUN/adapter where LoRA learned one, and results of `evaluate_model`.

    `split` is what was scored, before and after: test, else dev, else nothing, and all three are None.
    """

    final: Path
    adapter: Path | None
    split: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@lost_process_said()
def finetune(recipe: FinetuneRecipe, output_dir: str | Path, resume: bool = False) -> Finetuned:
    """Fine-tune as the recipe says into RUN, which is `output_dir`.

    RUN gets what a trained run has: recipe.yaml, manifest.json, metrics.jsonl, checkpoints/ (Trainer's own), final/
    (the best model by BLEU of dev; the last one without dev), results/ with the scores of the test split, or of dev
    where there is none, before and after; and adapter/ from LoRA, whose final/ has it merged in. With `resume` the run
    in RUN goes on from its newest whole checkpoint. Every process of a distributed run calls this.

    Raises UsageError for a folder or a recipe that does not fit, other UserErrors for data and models that cannot be
    used; all of them before training.
    """
    settings = recipe.finetuning
    if settings.lora_rank is not None:
        require_peft()
    run, processes = RunFolder(output_dir), require_all(joined_processes())
    with ExitStack() as at_end:
        run.lock = on_main(processes, lambda: at_end.enter_context(locked(run.path)))
        on_main(processes, lambda: run.begin(recipe, resume))
        model, tokenizer = load_base(settings.model)
        _name_languages(model.config, recipe)
        decoding = copy.deepcopy(model.generation_config)  # Trainer writes into the model's own
        parameters = model.num_parameters()
        set_seed(settings.seed)
        learner = model if settings.lora_rank is None else with_adapter(model, settings.lora_rank)
        on_main(processes, lambda: load_corpus(recipe.data))
        corpus = load_corpus(recipe.data)  # finds what the main process has stored
        with processes.main_process_first():
            train, dev = _learned_and_validated(corpus, model, tokenizer, recipe)
        split = next((name for name in ("test", "dev") if name in corpus.splits), None)
        score = partial(_scores, recipe, run, split, corpus.splits.get(split))
        on_main(processes, lambda: run.record(recipe))
        before = (_earlier_scores(run, split) if resume else None) or score(settings.model, f"{split}-before")

        source = newest_whole(run.checkpoints) if resume else None
        progress = Progress(run.metrics, step_of(source) if source else 0, _earlier_seconds(run))
        trainer = make_trainer(recipe, run.checkpoints.resolve(), learner, tokenizer, train, dev, [progress])
        facts = _facts(recipe, corpus, len(train), parameters, learner.num_parameters(only_trainable=True))
        manifest = partial(RunManifest, run, facts, trainer.accelerator, progress.facts)
        on_main(processes, lambda: at_end.enter_context(manifest()))
        _learn(trainer, source)
        adapter = None if settings.lora_rank is None else run.path / "adapter"
        if adapter is not None:
            on_main(processes, lambda: save_adapter(learner, adapter))
            model = merged(learner)
        model.generation_config = decoding
        on_main(processes, lambda: _write_final(run, model, tokenizer))
        after = score(str(run.final), str(split))
    on_main(processes, lambda: write_card(read_facts(run.final)))  # of a manifest that knows how the run ended
    hold_group()
    processes.destroy_process_group()
    return Finetuned(run.final, adapter, split, before, after)


def _name_languages(config: PreTrainedConfig, recipe: FinetuneRecipe) -> None:
    """Make the model's languages those of the recipe, with a warning where they were others."""
    for side in ("source_lang", "target_lang"):
        known, wanted = getattr(config, side), getattr(recipe.data, side)
        if known not in (None, wanted):
            logger.warning(f"The model's {side} is {known}; it learns {wanted} now, and will say so.")
        setattr(config, side, wanted)


def _learned_and_validated(
    corpus: Corpus, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: FinetuneRecipe
) -> tuple[datasets.Dataset, tuple[datasets.Dataset, list[str]] | None]:
    """The training split, and dev (None where there is none) with its references, as the trainer takes them."""
    train = training_pairs(corpus.splits["train"], tokenizer, recipe.data, model.config)
    if "dev" not in corpus.splits:
        return train, None
    dev, limit = corpus.splits["dev"], recipe.evaluation.dev_limit
    if limit is not None:
        dev = dev.select(range(min(limit, len(dev))))
    return train, validation_pairs(dev, tokenizer, recipe.data, model.config)


def _facts(
    recipe: FinetuneRecipe, corpus: Corpus, learned_from: int, parameters: int, trainable: int
) -> dict[str, Any]:
    """What the manifest says of a run beside its sessions."""
    counters = corpus.counters["train"]
    counters = counters | {"kept": learned_from, "too_many_tokens": counters["kept"] - learned_from}
    return {
        # A Hub id, or an absolute path: the model card names the first alone.
        "base_model": str(local.resolve()) if (local := Path(recipe.finetuning.model)).exists() else str(local),
        "seed": recipe.finetuning.seed,
        "parameters": parameters,
        "trainable_parameters": trainable,
        "data": {
            "counters": corpus.counters | {"train": counters},
            "reported": corpus.reported,
            "sources": corpus.sources,
        },
    }


def _learn(trainer: FinetuneTrainer, source: Path | None) -> None:
    """Train, from a checkpoint where there is one, until the model is the one that shall be final."""
    if trainer.is_world_process_zero():
        logger.info(f"Continuing from {source}." if source else f"Fine-tuning on {len(trainer.train_dataset):,} pairs.")
    with redirect_stdout(sys.stderr):  # Trainer prints its log; stdout is for results
        trainer.train(resume_from_checkpoint=str(source) if source else None)
    state, metric = trainer.state, trainer.args.metric_for_best_model
    if not trainer.is_world_process_zero():
        return
    if metric is None:
        logger.info(
            f"The final model is the last, after {state.global_step} updates: there is no dev split to choose by."
        )
    else:
        logger.info(
            f"The final model is the best of the validations, after {state.best_global_step} of {state.global_step} "
            f"updates: {metric} {state.best_metric:.2f} on dev."
        )


def _write_final(run: RunFolder, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    run.require()
    with explained(str(run.final), "The checkpoints are untouched; make room, then continue with --resume."):
        with whole_folder(run.final) as folder:
            save_model(model, tokenizer, folder, model.state_dict())


def _scores(
    recipe: FinetuneRecipe, run: RunFolder, split: str | None, pairs: datasets.Dataset | None, model: str, name: str
) -> dict[str, Any] | None:
    """The scores of a model on all pairs of the split, None without one; decoded as the model's own settings say.

    Every process calls it; the main one writes RUN/results/NAME.json.
    """
    if split is None or pairs is None:
        return None
    langs = recipe.data.source_lang, recipe.data.target_lang
    sources, references = ([pair[lang] for pair in pairs["translation"]] for lang in langs)
    return evaluate_model(
        model,
        sources,
        references,
        target_lang=recipe.data.target_lang,
        output_dir=run.results,
        name=name,
        metrics=recipe.evaluation.metrics,
        lowercase_tokenized=recipe.evaluation.lowercase_tokenized,
        scoring=recipe.evaluation.scoring,
        tokenize=recipe.evaluation.tokenize,
        split=split,
    )


def _earlier_scores(run: RunFolder, split: str | None) -> dict[str, Any] | None:
    path = run.results / f"{split}-before.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _earlier_seconds(run: RunFolder) -> float:
    try:
        return float(json.loads(run.manifest.read_text(encoding="utf-8"))["training_seconds"])
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or RunManifest says what is wrong with it
        return 0.0
