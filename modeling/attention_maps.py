"""What each head looks at for one sentence pair: the three kinds of attention of section 3.2.3 as plain numbers."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Shapes: G layers, H heads, Q positions that ask, K positions that are looked at, S source and T target tokens.


@dataclass(frozen=True)
class AttentionMap:
    """One kind of attention: weights[layer][head][query][key], rows that sum to one, and what stands there."""

    kind: str  # "encoder self-attention", "decoder self-attention" or "cross-attention"
    queries: list[str]
    keys: list[str]
    weights: list[list[list[list[float]]]]  # G x H x Q x K

    def mean_over_heads(self, layer: int) -> list[list[float]]:
        """Q x K of one layer."""
        return torch.tensor(self.weights[layer], dtype=torch.float64).mean(0).tolist()


@dataclass(frozen=True)
class SentenceAttention:
    """The maps of one pair; `written[t]` is the token that follows decoder position t."""

    source: str
    target: str
    written: list[str]
    maps: list[AttentionMap]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def attention_maps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None
) -> SentenceAttention:
    """The weights of every layer and head while `model` reads `source` and writes `target`, its own output if None.

    The decoder is shown <s> and the target without its last token, as in training. A recurrent model with attention
    has a cross-attention of one layer and one head. Raises ValueError for a model that has no attention at all.
    """
    inputs = tokenizer(source, return_tensors="pt").to(model.device)
    if target is None:
        output = model.generate(**inputs)[0, 1:]
        end = output.eq(model.config.eos_token_id).nonzero()
        labels = output[: int(end[0]) + 1] if len(end) else output
        target = tokenizer.decode(labels, skip_special_tokens=True)
    else:
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"][0].to(model.device)
    start = torch.tensor([model.config.decoder_start_token_id], device=model.device)
    shown = torch.cat([start, labels[:-1]])  # (T,)
    out = model(**inputs, decoder_input_ids=shown.unsqueeze(0), output_attentions=True, use_cache=False)
    read, told = readable(tokenizer, inputs["input_ids"][0].tolist()), readable(tokenizer, shown.tolist())
    found = [
        ("encoder self-attention", read, read, getattr(out, "encoder_attentions", None)),
        ("decoder self-attention", told, told, getattr(out, "decoder_attentions", None)),
        ("cross-attention", told, read, getattr(out, "cross_attentions", None)),
    ]
    maps = [
        AttentionMap(kind, queries, keys, torch.stack([layer[0] for layer in weights]).double().tolist())
        for kind, queries, keys, weights in found
        if weights
    ]
    if not maps:
        raise ValueError(f"{type(model).__name__} with this config has no attention: there is nothing to look at")
    return SentenceAttention(source, target, readable(tokenizer, labels.tolist()), maps)


def readable(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """Tokens as a reader wants them: a word's first piece with "␣" for the space before it, special tokens as named."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return [token.replace("▁", "␣").replace("Ġ", "␣").replace("</w>", "␣") for token in tokens]
