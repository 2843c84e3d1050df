"""The vocabulary that both languages share: byte-pair encoding (Sennrich et al. 2016), or whole words.

The paper shares "a source-target vocabulary of about 37000 tokens" between the languages (section 5.1). What is trained
here is a plain fast tokenizer: it loads with AutoTokenizer without remote code, appends `</s>` itself, has no length
limit, and gives back every text as it was, odd spaces and all.
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from vanilla_transformer.configuration.errors import CorpusError, UsageError, problems_error
from vanilla_transformer.training.bpe_codes import codes_backend

if TYPE_CHECKING:
    from vanilla_transformer.training.recipe_sections import TokenizerConfig

logger = logging.getLogger(__name__)

BOS, PAD, EOS, UNK = SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]

# Spaces become U+2581 inside the vocabulary, so a U+2581 of the text must become something else, and that again.
SPACE = "▁"
ESCAPE = "\x1b"
ESCAPED = ((ESCAPE, f"{ESCAPE}0"), (SPACE, f"{ESCAPE}1"))

# Merges stay inside a run of CJK characters, of other letters, of digits or of anything else, with the space before it.
# `</s>` in a text is such pieces too and can never be merged into the token of that name.
_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
PIECES = rf" ?[{_CJK}]+| ?(?:(?![{_CJK}])[\p{{L}}\p{{M}}])+| ?\p{{N}}+| ?[^ \p{{L}}\p{{M}}\p{{N}}]+"

# SentencePiece's defaults: characters beyond this share of the text are spelled in bytes, as thousands of Chinese ones
# are too rare to learn; no piece is longer than 16 characters. An alphabetic script keeps all its letters.
CHARACTER_COVERAGE = 0.9995
SMALL_ALPHABET = 256
MAX_PIECE_LENGTH = 16
# Lines whose characters are counted at a time.
LINES_PER_COUNT = 1000
# A piece seen once is no unit of the language, only the corpus's length.
MIN_PIECE_COUNT = 2


def train_tokenizer(texts: Iterable[str], config: "TokenizerConfig") -> PreTrainedTokenizerFast:
    """Learn a vocabulary of `config.vocab_size` entries from the lines of both languages; same lines, same vocabulary.

    `texts` is read twice: an iterator is held in memory, a list or a data set's column is not copied. A corpus with too
    few repeated pieces gives a smaller vocabulary, with a warning; `config.codes` decide their own size. Raises
    CorpusError where there is no text, and UsageError where `vocab_size` has no room for the special tokens, the 256
    bytes and the characters.
    """
    if iter(texts) is texts:
        texts = list(texts)
    backend = _backend(texts, config)
    reached = backend.get_vocab_size()
    if config.codes is None and reached < config.vocab_size:
        logger.warning(
            "tokenizer.vocab_size = %d: the corpus gives only %d entries, which the model will use",
            config.vocab_size,
            reached,
        )
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, SPECIAL_TOKENS.index(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # A `</s>` that somebody wrote in a text is text.
        split_special_tokens=True,
    )


def _backend(texts: Iterable[str], config: "TokenizerConfig") -> tokenizers.Tokenizer:
    if config.codes is not None:
        return codes_backend(texts, config.codes, SPECIAL_TOKENS)
    return (_train_words if config.type == "words" else _train_bpe)(texts, config.vocab_size)


def _train_bpe(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    alphabet = _alphabet(texts)
    fixed = len(SPECIAL_TOKENS) + len(BYTE_TOKENS)
    if vocab_size < fixed + len(alphabet):
        raise UsageError(
            f"tokenizer.vocab_size = {vocab_size}: too small; {len(SPECIAL_TOKENS)} special tokens, {len(BYTE_TOKENS)} "
            f"bytes and {len(alphabet)} characters of the corpus need {fixed + len(alphabet)}, every merge one more."
        )
    learner = tokenizers.Tokenizer(models.BPE())
    _set_up_bpe(learner)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - fixed,
        min_frequency=MIN_PIECE_COUNT,
        # Given whole and in order: among equally frequent characters the trainer's own choice is random.
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=MAX_PIECE_LENGTH,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learned = sorted(learner.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    # The trainer would make the bytes special tokens, which decoding drops; so they join the vocabulary afterwards.
    vocabulary = [*SPECIAL_TOKENS, *BYTE_TOKENS, *(piece for piece, _ in learned)]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(vocabulary)},
            merges=_merges(learner),
            unk_token=UNK,
            byte_fallback=True,
        )
    )
    _set_up_bpe(backend)
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return backend


def _set_up_bpe(backend: tokenizers.Tokenizer) -> None:
    """Text to pieces and back without loss: a space is put in front, of which decoding takes one away."""
    escapes = [normalizers.Replace(plain, escaped) for plain, escaped in ESCAPED]
    backend.normalizer = normalizers.Sequence([*escapes, normalizers.Prepend(" ")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated"),
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="never"),
        ]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(SPACE, " "),
            decoders.Strip(" ", 1, 0),  # after the replacing: a token that was added later has a plain space
            *(decoders.Replace(escaped, plain) for plain, escaped in reversed(ESCAPED)),
        ]
    )


def _alphabet(texts: Iterable[str]) -> list[str]:
    """The characters that get an entry of their own, frequent ones first, equally frequent ones by code point."""
    # A counter of code points: 9 MB, and a tenth of the time of a Counter of characters.
    occurrences = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    reader = iter(texts)
    while lines := list(islice(reader, LINES_PER_COUNT)):
        codes = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        counted = np.bincount(codes)
        occurrences[: len(counted)] += counted
        occurrences[ord(" ")] += len(lines)  # the one that is put in front
    counts = Counter({chr(code): int(occurrences[code]) for code in np.flatnonzero(occurrences)})
    counts[SPACE] = counts.pop(" ", 0)
    counts.pop(ESCAPE, None)
    total = counts.total()
    if total == counts[SPACE]:
        raise CorpusError("The training corpus holds no text to learn a tokenizer from.")
    alphabet: list[str] = []
    covered = 0
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= CHARACTER_COVERAGE * total and len(alphabet) >= SMALL_ALPHABET or count < MIN_PIECE_COUNT:
            break
        alphabet.append(character)
        covered += count
    return alphabet


def _merges(learner: tokenizers.Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]


def _train_words(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    counts = Counter(word for text in texts for word in text.split())
    for special in SPECIAL_TOKENS:
        counts.pop(special, None)
    if not counts:
        raise CorpusError("The training corpus holds no word to learn a tokenizer from.")
    if vocab_size <= len(SPECIAL_TOKENS):
        raise UsageError(f"tokenizer.vocab_size = {vocab_size}: leaves no room for words beside the special tokens.")
    words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    vocabulary = [*SPECIAL_TOKENS, *words[: vocab_size - len(SPECIAL_TOKENS)]]
    backend = tokenizers.Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=UNK)
    )
    # Words that spell a special token are unknown words.
    backend.normalizer = normalizers.Sequence([normalizers.Replace(special, UNK) for special in (BOS, PAD, EOS)])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return backend


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Load a trained tokenizer and check that a translation model can use it.

    Raises UsageError that names all that is missing: it must be fast, have start, pad and end tokens of different ids,
    and append the end token by itself.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"tokenizer.path = {folder}: no such folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise whatever they trip over
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"tokenizer.path = {folder}: holds no tokenizer that loads ({reason})") from error
    problems = []
    if not tokenizer.is_fast:
        problems.append("is not a fast tokenizer: convert it to a tokenizer.json")
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "pad", "eos")}
    problems += [f"has no {name}_token: set it in tokenizer_config.json" for name, id_ in ids.items() if id_ is None]
    known = [id_ for id_ in ids.values() if id_ is not None]
    if len(set(known)) < len(known):
        problems.append(f"uses one id for several of the bos, pad and eos tokens ({ids}): they must differ")
    if ids["eos"] is not None and (tokenizer("a")["input_ids"] or [None])[-1] != ids["eos"]:
        problems.append(f"does not append {tokenizer.eos_token}: add a TemplateProcessing post-processor")
    if problems:
        raise problems_error(f"tokenizer.path = {folder}", problems)
    return tokenizer
