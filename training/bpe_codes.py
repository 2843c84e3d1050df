"""The vocabulary of published BPE codes, as subword-nmt learns them (Sennrich et al. 2016).

A published result on "the joint BPE of the authors" is repeated with the authors' own merges: the text is segmented as
they segmented it, and the model still reads and writes whole words.
"""

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.text_files import iterate_lines

HEADER = "#version: 0.2"  # of older files the end of a word means something else
END = "</w>"


def codes_backend(texts: Iterable[str], path: str | Path, special_tokens: tuple[str, ...]) -> tokenizers.Tokenizer:
    """A tokenizer of space-separated words that applies the merges of `path`, plain or .gz; decoding joins the pieces.

    Its entries are the special tokens, every character of the texts (inside and at the end of a word) and what each
    merge makes. As with the published vocabularies, other characters are unknown; the last special token stands for
    them. Raises CorpusError for a file that holds no such codes.
    """
    merges = read_codes(path)
    characters = {character for text in texts for word in text.split() for character in word}
    characters |= {character for merge in merges for piece in merge for character in piece.removesuffix(END)}
    pieces = [piece for character in sorted(characters) for piece in (character, character + END)]
    vocabulary = dict.fromkeys([*special_tokens, *pieces, *("".join(merge) for merge in merges)])
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(vocabulary)},
        merges=merges,
        unk_token=special_tokens[-1],
        end_of_word_suffix=END,
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=END)
    backend.add_special_tokens(list(special_tokens))
    return backend


def read_codes(path: str | Path) -> list[tuple[str, str]]:
    """The merges of a file of subword-nmt's, first ones first."""
    lines = iterate_lines(path)
    if (first := next(lines)).strip() != HEADER:
        raise CorpusError(f"{path}:1: BPE codes of subword-nmt begin with {HEADER}, and this is {first[:40]!r}")
    merges = []
    for number, line in enumerate(lines, start=2):
        parts = line.split()
        if len(parts) != 2:
            raise CorpusError(f"{path}:{number}: a merge is two pieces and a space, and this is {line[:40]!r}")
        merges.append((parts[0], parts[1]))
    return merges
