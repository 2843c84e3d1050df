"""Tokenised BLEU against its definition, the Perl scripts' own output, and published figures."""

import gzip
import math
from collections import Counter

import pytest

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.evaluation import corpus_scores
from vanilla_transformer.training.tokenised_bleu import moses_lowercase_tokenized, paper_tokenized


def read(path):
    with gzip.open(path, "rb") as file:
        return file.read().decode("utf-8").removesuffix("\n").split("\n")


def test_tensorflow_nmts_published_figure(shared_data):
    hypotheses = read(shared_data("tfnmt_bleu_fixture/deen_output.gz"))
    references = [line.replace("@@ ", "") for line in read(shared_data("tfnmt_bleu_fixture/deen_ref_bpe.gz"))]
    # nmt/utils/evaluation_utils_test.py: 22.5855084573, splitting at single spaces, which makes 3 empty tokens more
    score = corpus_scores(hypotheses, references, tokenize="none", metrics=["bleu"])["bleu"]["score"]
    assert score == pytest.approx(22.5855084573, abs=1e-3)
    assert score == pytest.approx(100 * multi_bleu(hypotheses, references), abs=1e-9)


def multi_bleu(hypotheses, references):
    """multi-bleu.perl from its definition: clipped n-gram counts of the corpus, geometric mean, brevity penalty."""
    matches, totals = [0] * 4, [0] * 4
    hypothesis_length = reference_length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        h, r = hypothesis.split(), reference.split()
        hypothesis_length += len(h)
        reference_length += len(r)
        for n in range(4):
            h_grams = Counter(tuple(h[i : i + n + 1]) for i in range(len(h) - n))
            r_grams = Counter(tuple(r[i : i + n + 1]) for i in range(len(r) - n))
            matches[n] += sum((h_grams & r_grams).values())
            totals[n] += sum(h_grams.values())
    if not all(matches):
        return 0.0
    penalty = min(1.0, math.exp(1 - reference_length / hypothesis_length))
    return penalty * math.exp(sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4)


@pytest.mark.parametrize(
    ("lang", "split", "tokens"),  # token counts: wc -w of the files that the data set publishes
    [("de", "test_2016_flickr", 12103), ("fr", "test_2016_flickr", 13988), ("fr", "val", 14381), ("de", "val", 12828)],
)
def test_moses_in_python_is_moses_in_perl(shared_data, lang, split, tokens):
    ours = moses_lowercase_tokenized(read(shared_data(f"multi30k/{split}.{lang}.gz")), lang)
    assert ours == read(shared_data(f"multi30k/tok/{split}.lc.norm.tok.{lang}.gz"))
    assert sum(len(line.split()) for line in ours) == tokens


def test_lowercase_tokenized_is_multi_bleu_on_the_published_tokens(shared_data):
    raw = read(shared_data("multi30k/test_2016_flickr.de.gz"))
    tokenized = read(shared_data("multi30k/tok/test_2016_flickr.lc.norm.tok.de.gz"))
    # A system output whose Moses form is known: line i answers line i for nine of ten, its neighbour for the tenth.
    order = [i + 1 if i % 10 == 0 else i for i in range(len(raw) - 1)] + [len(raw) - 1]
    scores = corpus_scores([raw[i] for i in order], raw, "de_DE", ["bleu"], lowercase_tokenized=True)
    bleu = scores["bleu_lowercase_tokenized"]
    assert bleu["ref_len"] == 12103  # as printed with the published 41.02
    assert bleu["score"] == pytest.approx(100 * multi_bleu([tokenized[i] for i in order], tokenized), abs=1e-9)
    assert "case:lc" in bleu["signature"] and "tok:none" in bleu["signature"] and "smooth:none" in bleu["signature"]
    assert "pre:moses-lc-norm-tok-de|sacremoses:" in bleu["signature"]
    assert bleu["score"] != scores["bleu"]["score"]


@pytest.mark.parametrize("lang", [None, "zh", "ja"])
def test_lowercase_tokenized_refuses_languages_that_moses_cannot_tokenise(lang):
    with pytest.raises(UsageError, match="lower-cased"):
        corpus_scores(["a"], ["a"], lang, ["chrf"], lowercase_tokenized=True)


def test_the_paper_s_scoring_cuts_german_compounds_and_no_others():
    # get_ende_bleu.sh: perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g', which takes a character once, so that the
    # second hyphen of a-b-c stays.
    assert paper_tokenized(["Der Rich-Text, a-b-c - x"], "de") == [
        "Der Rich ##AT##-##AT## Text , a ##AT##-##AT## b-c - x"
    ]
    assert paper_tokenized(["Un rendez-vous, l'eau"], "fr") == ["Un rendez-vous , l&apos; eau"]


def test_the_paper_s_scoring_is_multi_bleu_of_those_tokens(shared_data):
    [hypotheses] = (read(path) for path in shared_data("wmt_sysout").glob("wmt14.en-de.bergamot-base-memory.de.gz"))
    references = read(shared_data("wmt/newstest2014-wmt14subset.en-de.de.gz"))
    hypotheses, references = hypotheses[:300], references[:300]
    scores = corpus_scores(hypotheses, references, "de", ["bleu"], scoring="paper")
    paper = scores["bleu_paper"]
    expected = multi_bleu(paper_tokenized(hypotheses, "de"), paper_tokenized(references, "de"))
    assert paper["score"] == pytest.approx(100 * expected, abs=1e-9)
    assert paper["score"] > scores["bleu"]["score"]
    assert paper["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:")
    assert "|pre:moses-tok-de-compounds|sacremoses:" in paper["signature"]


def test_a_scoring_that_does_not_exist_is_a_usage_error():
    with pytest.raises(UsageError, match="Unknown scoring papers; choose from sacrebleu, paper"):
        corpus_scores(["a"], ["a"], "de", scoring="papers")


@pytest.mark.parametrize("lang", [None, "zh"])
def test_the_paper_s_scoring_refuses_languages_that_moses_cannot_tokenise(lang):
    with pytest.raises(UsageError, match="paper's tokenised BLEU needs a target language"):
        corpus_scores(["a"], ["a"], lang, ["chrf"], scoring="paper")
