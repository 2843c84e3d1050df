"""A foreign vocabulary as a tokenizer that loads anywhere."""

import pytest
from transformers import AutoTokenizer

from vanilla_transformer.modeling.converters.words_tokenizer import words_tokenizer

TOKENS = ["<unk>", "<pad>", "<s>", "</s>", "a", "b@@", "ß"]
SPECIAL = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}


@pytest.mark.parametrize(
    "options, text, ids",
    [
        ({}, "a b@@ ß", [4, 5, 6, 3]),
        ({}, "", [3]),
        ({}, " a   c\u00a0a ", [4, 0, 3]),  # only spaces part words, however many
        ({}, "a </s> <pad>", [4, 0, 0, 3]),  # spelled, not meant
        ({}, "A", [0, 3]),
        ({"lowercase": True}, "A", [4, 3]),
        ({"after": False}, "a", [4]),
        ({"before": True}, "a", [2, 4, 3]),
    ],
)
def test_ids_survive_saving(options, text, ids, tmp_path):
    words_tokenizer(TOKENS, **SPECIAL, **options).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(text).input_ids == ids
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2, 3)


def test_decoding_joins_with_spaces():
    assert words_tokenizer(TOKENS, **SPECIAL).decode([2, 4, 5, 3, 1], skip_special_tokens=True) == "a b@@"
