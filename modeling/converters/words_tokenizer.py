"""A foreign vocabulary of whole tokens as a fast tokenizer: text is cut at spaces, what is not listed is unknown."""

from collections.abc import Sequence

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def words_tokenizer(
    tokens: Sequence[str],
    *,
    unk: str,
    pad: str,
    bos: str,
    eos: str,
    lowercase: bool = False,
    before: bool = False,
    after: bool = True,
) -> PreTrainedTokenizerFast:
    """`tokens` by number, the four special ones among them; every text gets `bos` `before` it and `eos` `after` it.

    It loads with AutoTokenizer without remote code. A special token that is spelled in a text is an unknown word.
    """
    number = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordLevel(number, unk_token=unk))
    spelled: list[normalizers.Normalizer] = [normalizers.Replace(special, unk) for special in (bos, pad, eos)]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *spelled] if lowercase else spelled)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    backend.add_special_tokens([unk, pad, bos, eos])
    around = [bos] * before, [eos] * after
    backend.post_processor = processors.TemplateProcessing(
        single=[*around[0], "$A", *around[1]], special_tokens=[(bos, number[bos]), (eos, number[eos])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        pad_token=pad,
        eos_token=eos,
        unk_token=unk,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )
