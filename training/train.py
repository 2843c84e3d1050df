"""A run from its recipe to its final model: `vanilla-transformer train`, torchrun and `accelerate launch -m`."""

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from vanilla_transformer.training import checkpoint
from vanilla_transformer.training.acceleration import close_accelerator, make_accelerator
from vanilla_transformer.training.card import write_card
from vanilla_transformer.training.durable import fault
from vanilla_transformer.training.final import evaluate_final, write_final
from vanilla_transformer.training.folder_lock import locked
from vanilla_transformer.training.loop import Loop
from vanilla_transformer.training.manifest import RunManifest
from vanilla_transformer.training.metrics_log import MetricsLog
from vanilla_transformer.training.model_facts import read_facts
from vanilla_transformer.training.model_folder import build_model, save_model
from vanilla_transformer.training.optimizer import build_adam, load_optimizer_tensors
from vanilla_transformer.training.prepare import prepare
from vanilla_transformer.training.processes import from_main, lost_process_said, on_main
from vanilla_transformer.training.recipe import Recipe
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.trackers import start_trackers
from vanilla_transformer.training.validation import Validator, require_lengths
from vanilla_transformer.training.write_retries import write_on_main

logger = logging.getLogger(__name__)


@lost_process_said()
def train(recipe: Recipe, output_dir: str | Path, resume: bool = False) -> Path:
    """Train as the recipe says and return RUN/final, RUN being `output_dir`; prints the test BLEU with its signature.

    With `resume` the run in the folder goes on from its newest whole checkpoint, or begins where there is none. Every
    process of a distributed run calls this. Raises UsageError for a folder or a recipe that does not fit, Preempted
    (exit code 75) after the checkpoint that SIGTERM or SIGUSR1 asked for, other UserErrors where training cannot go on.
    """
    run, config = RunFolder(output_dir), recipe.training
    accelerator = make_accelerator(recipe)
    with ExitStack() as at_end:
        at_end.callback(close_accelerator, accelerator)
        run.lock = on_main(accelerator, lambda: at_end.enter_context(locked(run.path)))
        on_main(accelerator, lambda: run.begin(recipe, resume))
        if accelerator.num_processes > 1:
            on_main(accelerator, lambda: prepare(recipe, run.path))
        prepared = prepare(recipe, run.path)  # processes after the main one find what it has made
        held_out = {"dev": prepared.dev, "test": prepared.test}
        on_main(accelerator, lambda: require_lengths(recipe, prepared.tokenizer, held_out))

        model = build_model(recipe, prepared.tokenizer)
        source, skipped = from_main(accelerator, lambda: checkpoint.newest_whole(run.checkpoints))
        state = checkpoint.begin_or_continue(
            source, model, prepared.fingerprint, config.gradient_accumulation_steps, accelerator.num_processes
        )
        on_main(accelerator, lambda: run.record(recipe))
        if accelerator.is_main_process:
            for reason in skipped:
                logger.warning(reason)
            if state.best_step and (harm := fault(run.best)):
                logger.warning(f"{run.best} is damaged: {harm}. The next better model takes its place.")
            logger.info(f"Continuing from {source}." if source else f"Beginning {run.path}.")
        if config.activation_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        adam = build_adam(model.parameters(), config.adam_beta1, config.adam_beta2, config.adam_epsilon)
        wrapped, prepared_adam = accelerator.prepare(model, adam)
        optimizer = prepared_adam.optimizer
        if source:
            load_optimizer_tensors(wrapped, optimizer, checkpoint.load_optimizer(source))
        log = on_main(
            accelerator,
            lambda: at_end.enter_context(MetricsLog(run.metrics, state.log_size, state.log_rows)),
        )
        on_main(accelerator, lambda: start_trackers(accelerator, recipe, run, state))
        loop = Loop(
            config=config,
            accelerator=accelerator,
            model=wrapped,
            optimizer=optimizer,
            examples=prepared.train,
            d_model=model.config.d_model,
            pad_id=prepared.tokenizer.pad_token_id,
            state=state,
            run=run,
            log=log,
            save_model=partial(save_model, model, prepared.tokenizer),
            validate=Validator(recipe, accelerator, prepared.tokenizer, prepared.dev) if prepared.dev else None,
        )
        facts = {"seed": config.seed, "parameters": model.num_parameters(), "data": prepared.facts}
        on_main(accelerator, lambda: at_end.enter_context(RunManifest(run, facts, accelerator, loop.progress)))
        limit = loop.train()
        make_final = partial(write_final, run, config.average_last, config.save_every)
        made_of = write_on_main(accelerator, make_final, config.write_retry_minutes)
        if accelerator.is_main_process:
            logger.info(f"Training ended after step {state.step} (training.{limit}). {made_of}")
        if prepared.test:
            result = evaluate_final(run, recipe, accelerator, prepared.test)
            if accelerator.is_main_process:
                for name, score in result["scores"].items():
                    print(f"test {name} = {score['score']:.2f} {score['signature']}")
    if accelerator.is_main_process:
        write_card(read_facts(run.final))  # of a manifest that knows how the run ended
    return run.final


if __name__ == "__main__":  # torchrun, accelerate launch -m, python -m
    from vanilla_transformer.training.command import main

    main()
