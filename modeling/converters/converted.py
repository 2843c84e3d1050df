"""What a converter makes of a foreign model, and what it has to say about it."""

from dataclasses import dataclass, field

from transformers import GenerationConfig, PreTrainedTokenizerBase

from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


@dataclass(frozen=True)
class Converted:
    """A model of ours with a foreign model's weights (evaluation mode), its tokenizer, and what differs nevertheless.

    Notes are full sentences about what does not change the logits of a sentence: limits, searches, training settings.
    """

    model: VanillaTransformerForConditionalGeneration
    tokenizer: PreTrainedTokenizerBase
    notes: list[str] = field(default_factory=list)


def search_notes(generation: GenerationConfig, engine: str, penalty: str, cap: str) -> list[str]:
    """What of our search `engine` cannot be told: its `penalty` in place of GNMT's, and its `cap` on the output."""
    notes = []
    alpha = generation.length_penalty
    if getattr(generation, "length_penalty_type", None) == "gnmt" and generation.num_beams != 1 and alpha:
        notes.append(
            f"Length penalty: this model divides by GNMT's ((5 + length) / 6) ^ {alpha:g}, which {engine} does not "
            f"have; {penalty}. Of two translations of different length it can prefer the other one."
        )
    over = getattr(generation, "max_new_tokens_over_input", None)
    if over is not None:
        notes.append(
            f"Length limit: this model stops {over} tokens over each input's length, which {engine} cannot be told; "
            f"{cap}."
        )
    return notes
