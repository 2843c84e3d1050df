"""`vanilla-transformer finetune`: a saved or Hub model, taught with Seq2SeqTrainer."""

import json
from typing import Annotated, Any

import typer

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.command import RunOption, SetOption, is_main_process


def finetune_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder such as RUN/final, or a Hub id.")],
    corpus: Annotated[
        str, typer.Option("--corpus", help="As in a recipe: a folder or file of pairs, a named corpus, a Hub data set.")
    ],
    output_dir: RunOption,
    source_lang: Annotated[str | None, typer.Option("--source-lang", help="Default: the model's.")] = None,
    target_lang: Annotated[str | None, typer.Option("--target-lang", help="Default: the model's.")] = None,
    set_: SetOption = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Adam's highest. Default: 3e-4; with --lora 3e-3.")
    ] = None,
    epochs: Annotated[float, typer.Option("--epochs", help="Passes over the training pairs.")] = 5.0,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Updates, in the place of --epochs.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Pairs that a process computes at once.")] = 64,
    gradient_accumulation_steps: Annotated[
        int, typer.Option("--gradient-accumulation-steps", help="Batches of each process in an update.")
    ] = 1,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", help="Updates between validations. Default: once an epoch.")
    ] = None,
    patience: Annotated[
        int, typer.Option("--patience", help="Validations in a row without a better BLEU before it stops.")
    ] = 3,
    precision: Annotated[
        str | None,
        typer.Option("--precision", help="float32 or bfloat16. Default: bfloat16 on a GPU that has it, else float32."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Fixes the order of pairs, dropout, an adapter's start.")] = 1,
    lora: Annotated[bool, typer.Option("--lora", help="Teach a LoRA adapter instead of every weight.")] = False,
    lora_rank: Annotated[int | None, typer.Option("--lora-rank", help="The adapter's rank. Default: 16.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue in RUN from its newest checkpoint.")] = False,
    push: Annotated[
        str | None, typer.Option("--push", metavar="ORG/NAME", help="Push RUN/final to this repo on the Hub.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Of --push: a new repo that only its owners see.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Teach a model of ours from pairs of yours, and score it before and after.

    \b
    vanilla-transformer finetune runs/base/final --corpus my-folder --output-dir runs/mine
    vanilla-transformer finetune org/name --corpus pairs.tsv --output-dir runs/mine --source-lang en --target-lang de
    vanilla-transformer finetune org/name --corpus my-folder --output-dir runs/mine --lora --push org/mine
    torchrun --nproc-per-node 2 -m vanilla_transformer finetune runs/base/final --corpus my-folder --output-dir runs/two

    The corpus is read, cleaned and counted as `train` does; --set takes keys of a recipe's sections data and
    evaluation, such as data.max_length=100. A split dev chooses the best model by BLEU and stops the run when that
    gets no better; the scores printed are of test, or of dev without one. RUN/final is a Hub-ready folder. With --lora,
    RUN/adapter is the adapter alone and RUN/final has it merged in.
    """
    if lora_rank is not None and not lora:
        raise UsageError("--lora-rank belongs to --lora.")
    if private and push is None:
        raise UsageError("--private belongs to --push.")
    from vanilla_transformer.training.base_model import read_config

    config = read_config(model)
    langs = source_lang or config.source_lang, target_lang or config.target_lang
    if None in langs:
        raise UsageError(f"{model} does not say its languages; give --source-lang and --target-lang.")
    from vanilla_transformer.training.finetune_recipe import (
        LEARNING_RATE,
        LORA_LEARNING_RATE,
        LORA_RANK,
        FinetuningConfig,
        finetune_recipe,
    )
    from vanilla_transformer.training.publish import push as push_to_hub
    from vanilla_transformer.training.publish import require_target

    if learning_rate is None:
        learning_rate = LORA_LEARNING_RATE if lora else LEARNING_RATE
    if lora_rank is None and lora:
        lora_rank = LORA_RANK
    settings = FinetuningConfig(
        model=model,
        seed=seed,
        learning_rate=learning_rate,
        epochs=epochs,
        max_steps=max_steps,
        batch_size=batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        eval_every=eval_every,
        patience=patience,
        precision=precision or _quick_precision(),  # type: ignore[arg-type]
        lora_rank=lora_rank,
    )
    recipe = finetune_recipe(settings, corpus, *langs, set_ or ())
    if push is not None:
        require_target(push)
    from vanilla_transformer.training.finetune import finetune

    done = finetune(recipe, output_dir, resume)
    if not is_main_process():
        return
    if not json_:
        for when, result in (("before", done.before), ("after", done.after)):
            for metric, score in (result or {"scores": {}})["scores"].items():
                print(f"{done.split} {metric} {when} = {score['score']:.2f} {score['signature']}")
        print(done.final, flush=True)
    url = push_to_hub(done.final, push, private=private).url if push else None
    if json_:
        print(json.dumps(_summary(done, url), ensure_ascii=False, indent=2))
    elif url:
        print(url)


def _quick_precision() -> str:
    """bfloat16 where the hardware computes in it; a CPU only does so slowly."""
    import torch

    return "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported(False) else "float32"


def _summary(done: Any, url: str | None) -> dict[str, Any]:
    return {
        "final": str(done.final),
        "adapter": str(done.adapter) if done.adapter else None,
        "split": done.split,
        "before": done.before and done.before["scores"],
        "after": done.after and done.after["scores"],
        "commit": url,
    }
