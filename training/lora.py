"""Low-rank adapters (LoRA, Hu et al. 2021) on our model, by the peft library (extra `peft`)."""

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.durable import whole_folder

if TYPE_CHECKING:
    from peft import PeftModel

# Every matrix of every layer: the four projections of each attention, the two of each feed-forward. Adapters on all of
# them reach what training every weight reaches, those on attention alone do not (Dettmers et al. 2023, section 4).
# The embeddings stay out: where source, target and softmax are one matrix, peft would train copies that drift apart.
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
DROPOUT = 0.1


def require_peft() -> None:
    """Raise UsageError where the extra is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise UsageError("--lora needs peft, which is not installed; pip install 'vanilla-transformer[peft]'.")


def with_adapter(model: PreTrainedModel, rank: int) -> "PeftModel":
    """The model with an adapter of this rank, which alone learns; alpha is twice the rank, so a rank changes no rate.

    The adapter's first weights come from torch's generator. Raises UserError for a model without such layers.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM,
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=DROPOUT,
        target_modules=list(TARGET_MODULES),
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"--lora does not fit a {model.config.model_type} model: {error}") from error


def save_adapter(model: "PeftModel", folder: Path) -> None:
    """Write the adapter alone, for `PeftModel.from_pretrained(base, folder)`; an earlier one is replaced."""
    with whole_folder(folder) as temporary:
        # Whether the base has grown is looked up on the Hub otherwise; ours never does here.
        model.save_pretrained(str(temporary), save_embedding_layers=False)


def merged(model: "PeftModel") -> PreTrainedModel:
    """The base model with the adapter added into its matrices: a plain one, tied as it was."""
    tied = model.config.tie_word_embeddings
    with warnings.catch_warnings():
        # peft compares the softmax with the source side alone, whatever it is tied to.
        warnings.filterwarnings("ignore", message="Input and output embeddings are no longer tied")
        plain = model.merge_and_unload()
    plain.config.tie_word_embeddings = tied
    return plain
