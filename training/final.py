"""The end of a run: one model folder to use and publish, and its scores on the test pairs."""

from typing import Any

import datasets
from accelerate import Accelerator

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.averaging import write_average
from vanilla_transformer.training.checkpoint import damage, newest_whole, scheduled
from vanilla_transformer.training.durable import fault
from vanilla_transformer.training.evaluation import evaluate_model
from vanilla_transformer.training.model_folder import copy_model
from vanilla_transformer.training.recipe import Recipe
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.validation import decoding_options
from vanilla_transformer.training.write_errors import explained


def write_final(run: RunFolder, average_last: int, save_every: int) -> str:
    """Make RUN/final: the average of the last `average_last` scheduled checkpoints, else the best model, else the last.

    Damaged checkpoints are passed over. Returns a sentence that says what it is made of; raises WriteError where the
    file system refuses. Main process only.
    """
    run.require()
    whole = [folder for folder in scheduled(run.checkpoints, save_every) if damage(folder) is None]
    with explained(f"The final model {run.final}", "The checkpoints are untouched; make room, then use --resume."):
        if len(whole) >= average_last:
            chosen = whole[-average_last:]
            write_average(chosen, run.final)
            return f"{run.final} is the average of {', '.join(folder.name for folder in chosen)}."
        if run.best.exists() and fault(run.best) is None:
            copy_model(run.best, run.final)
            return (
                f"{run.final} is the best model of the validations; an average needs training.average_last = "
                f"{average_last} checkpoints of training.save_every, and there are {len(whole)}."
            )
        newest, _ = newest_whole(run.checkpoints)
        if newest is None:
            raise UserError(f"{run.path} holds no checkpoint to make a final model of.")
        copy_model(newest, run.final)
        return f"{run.final} is the last checkpoint, {newest.name}."


def evaluate_final(run: RunFolder, recipe: Recipe, accelerator: Accelerator, test: datasets.Dataset) -> dict[str, Any]:
    """Translate the test pairs with RUN/final and score them into RUN/results; every process calls it."""
    accelerator.wait_for_everyone()
    pairs = [row["translation"] for row in test]
    evaluation = recipe.evaluation
    return evaluate_model(
        run.final,
        [pair[recipe.data.source_lang] for pair in pairs],
        [pair[recipe.data.target_lang] for pair in pairs],
        target_lang=recipe.data.target_lang,
        output_dir=run.results,
        name="test",
        metrics=evaluation.metrics,
        lowercase_tokenized=evaluation.lowercase_tokenized,
        tokenize=evaluation.tokenize,
        scoring=evaluation.scoring,
        split="test",
        **decoding_options(recipe.generation),
    )
