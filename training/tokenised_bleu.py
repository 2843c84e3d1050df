"""BLEU of Moses-tokenised text, as papers reported it before sacreBLEU: the score of multi-bleu.perl.

Such a figure depends on the tokeniser that prepared both texts, and so cannot be compared with sacreBLEU's. Two are
here because published figures need them: that of Multi30k papers, lower-cased, and that of Vaswani et al. 2017.
"""

import re
from collections.abc import Callable, Sequence
from importlib.metadata import version

from sacrebleu.metrics.bleu import BLEU

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.scoring_tokenizers import east_asian_language, moses_language

LOWERCASE_TOKENIZED, PAPER = "bleu_lowercase_tokenized", "bleu_paper"
# Stanford's newstest2014, and with it every paper from Luong et al. 2015 to Vaswani et al. 2017, cuts "rich-text" into
# three tokens; tensor2tensor's get_ende_bleu.sh has this substitution, which takes every hyphen once.
_COMPOUND = re.compile(r"(\S)-(\S)")


def tokenised_scorer(name: str, target_lang: str | None) -> tuple[BLEU, Callable[[Sequence[str]], list[str]], str]:
    """The scorer of LOWERCASE_TOKENIZED or PAPER, what prepares its texts, and what its signature says of that.

    Raises UsageError for a language that Moses cannot tokenise, or none.
    """
    if target_lang is None or east_asian_language(target_lang):
        kind = "lower-cased tokenised" if name == LOWERCASE_TOKENIZED else "paper's tokenised"
        raise UsageError(
            f"The {kind} BLEU needs a target language that Moses can tokenise; got {target_lang}. Give the language, "
            "or leave that score out."
        )
    lang, lowercase = moses_language(target_lang), name == LOWERCASE_TOKENIZED
    steps = f"moses-{'lc-norm-' if lowercase else ''}tok-{lang}"
    if not lowercase and lang == "de":
        steps += "-compounds"
    # multi-bleu.perl: whitespace tokens, no smoothing, the closest reference length. The text will be lower-cased
    # already, so lowercase=True changes nothing but makes the signature say so.
    scorer = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
    tokenise = moses_lowercase_tokenized if lowercase else paper_tokenized
    return scorer, lambda lines: tokenise(lines, lang), f"|pre:{steps}|sacremoses:{version('sacremoses')}"


def moses_lowercase_tokenized(lines: Sequence[str], lang: str) -> list[str]:
    """Lines after Moses' lowercase.perl, normalize-punctuation.perl -l LANG and tokenizer.perl -l LANG, in that order.

    Escapes as the Perl scripts do (`&apos;`, `&quot;`). Byte for byte the tok/ files of Multi30k
    (test_tokenised_bleu.py).
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer = MosesPunctNormalizer(lang=lang, perl_parity=True)
    tokenizer = MosesTokenizer(lang=lang)
    # The Perl script sees the line's end: one of its rules for quotation marks needs a character there.
    return [tokenizer.tokenize(normalizer.normalize(line.lower() + "\n"), return_str=True) for line in lines]


def paper_tokenized(lines: Sequence[str], lang: str) -> list[str]:
    """Lines after Moses' tokenizer.perl -l LANG; in German, the parts of hyphenated compounds are tokens of their own.

    As tensor2tensor's utils/get_ende_bleu.sh does. Cutting compounds adds easy matches, which is most of why this BLEU
    is above sacreBLEU's; French, which the paper scores too, is not cut.
    """
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=lang)
    tokenized = [tokenizer.tokenize(line, return_str=True) for line in lines]
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in tokenized] if lang == "de" else tokenized
