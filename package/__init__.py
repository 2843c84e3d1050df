"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), at home in the Hugging Face ecosystem.

Importing this package makes transformers' Auto classes know the model, and imports neither torch nor transformers: the
public names load when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vanilla_transformer.registration import register_auto_classes

if TYPE_CHECKING:
    from vanilla_transformer.configuration.configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig
    from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
    from vanilla_transformer.configuration.presets import presets
    from vanilla_transformer.modeling.modeling_recurrent_seq2seq import RecurrentSeq2SeqForConditionalGeneration
    from vanilla_transformer.modeling.modeling_vanilla_transformer import (
        VanillaTransformerForConditionalGeneration,
        VanillaTransformerModel,
    )
    from vanilla_transformer.modeling.pipeline_vanilla_transformer import TranslationPipeline
    from vanilla_transformer.training.averaging import average_checkpoints
    from vanilla_transformer.training.evaluation import corpus_scores
    from vanilla_transformer.training.signed_bleu import SignedBleu

    __version__: str

__all__ = [
    "RecurrentSeq2SeqConfig",
    "RecurrentSeq2SeqForConditionalGeneration",
    "SignedBleu",
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "__version__",
    "average_checkpoints",
    "corpus_scores",
    "presets",
]

_HOME_OF = {
    "RecurrentSeq2SeqConfig": "configuration.configuration_recurrent_seq2seq",
    "RecurrentSeq2SeqForConditionalGeneration": "modeling.modeling_recurrent_seq2seq",
    "SignedBleu": "training.signed_bleu",
    "TranslationPipeline": "modeling.pipeline_vanilla_transformer",
    "VanillaTransformerConfig": "configuration.configuration_vanilla_transformer",
    "VanillaTransformerForConditionalGeneration": "modeling.modeling_vanilla_transformer",
    "VanillaTransformerModel": "modeling.modeling_vanilla_transformer",
    "average_checkpoints": "training.averaging",
    "corpus_scores": "training.evaluation",
    "presets": "configuration.presets",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("vanilla-transformer")
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_auto_classes()
