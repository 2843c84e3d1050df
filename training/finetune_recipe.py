"""Everything that decides a fine-tuning: what it starts from and how it learns, and a recipe's data and evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vanilla_transformer.configuration.errors import UsageError, problems_error
from vanilla_transformer.training.recipe import DataConfig, EvaluationConfig, recipe_from_mapping

SECTIONS = ("data", "evaluation")
# Below half of the paper's highest for base, 7e-4. A model of 5 million weights, after 200 updates on text of another
# kind (BLEU 3.6 before): 3.8 at 1e-4, 5.2 at 3e-4, 7.3 at 1e-3. An adapter starts at nothing and needs more: 4.0 at
# 1e-3, 4.5 at 3e-3.
LEARNING_RATE, LORA_LEARNING_RATE = 3e-4, 3e-3
LORA_RANK = 16


@dataclass(frozen=True)
class FinetuningConfig:
    """How Seq2SeqTrainer learns. Adam's betas and epsilon are the paper's; the rate falls linearly after a warm-up."""

    # A model folder or Hub id.
    model: str
    # Fixes the order of pairs, dropout and an adapter's first weights.
    seed: int = 1
    # Adam's highest rate, reached after a tenth of the updates.
    learning_rate: float = LEARNING_RATE
    # Passes over the training pairs; a number of updates takes their place.
    epochs: float = 5.0
    max_steps: int | None = None
    # Pairs that a process computes at once; an update is of batch_size * gradient_accumulation_steps * processes.
    batch_size: int = 64
    gradient_accumulation_steps: int = 1
    # Updates between validations; null: once an epoch. Each keeps a checkpoint: the newest and the best stay.
    eval_every: int | None = None
    # Validations in a row that may be no better than the best before training stops.
    patience: int = 3
    # bfloat16 computes in bfloat16 and keeps weights and optimiser in float32.
    precision: Literal["float32", "bfloat16"] = "float32"
    # Rank of a LoRA adapter (Hu et al. 2021), which is then all that learns; null: every weight learns.
    lora_rank: int | None = None

    def problems(self) -> list[str]:
        least = {"seed": 0, "max_steps": 1, "batch_size": 1, "gradient_accumulation_steps": 1}
        least |= {"eval_every": 1, "patience": 1, "lora_rank": 1}
        found = [
            f"{name} = {value}: must be at least {minimum}"
            for name, minimum in least.items()
            if (value := getattr(self, name)) is not None and value < minimum
        ]
        for name in ("learning_rate", "epochs"):
            if not getattr(self, name) > 0:
                found.append(f"{name} = {getattr(self, name)}: must be above 0")
        if self.precision not in ("float32", "bfloat16"):
            found.append(f"precision = {self.precision}: must be float32 or bfloat16")
        return found


@dataclass(frozen=True)
class FinetuneRecipe:
    """What `finetune` was asked for, all of it valid; kept as RUN/recipe.yaml."""

    data: DataConfig
    finetuning: FinetuningConfig
    evaluation: EvaluationConfig


def finetune_recipe(
    finetuning: FinetuningConfig, corpus: str, source_lang: str, target_lang: str, overrides: Sequence[str] = ()
) -> FinetuneRecipe:
    """The recipe of command-line flags and of overrides such as "data.max_length=100".

    Raises UsageError with every problem, each naming the flag or key.
    """
    problems = []
    for problem in finetuning.problems():
        name, equals, rest = problem.partition(" = ")
        problems.append(f"--{name.replace('_', '-')}{equals}{rest}")
    kept = [override for override in overrides if override.partition(".")[0].strip() in SECTIONS]
    for override in overrides:
        if override not in kept:
            problems.append(f"--set {override}: finetune takes keys of {' and '.join(SECTIONS)}; the rest are flags")
    data = {"corpus": corpus, "source_lang": source_lang, "target_lang": target_lang}
    try:
        recipe = recipe_from_mapping({"data": data}, kept)
        if recipe.data.streaming:
            problems.append("data.streaming = true: finetune needs to know how long the corpus is; leave it out")
    except UsageError as error:
        problems += [line.strip() for line in str(error).splitlines()[1:]]
    if problems:
        raise problems_error("finetune", problems)
    return FinetuneRecipe(recipe.data, finetuning, recipe.evaluation)
