import gzip
import hashlib
import json
import random

import pytest
from sacrebleu.metrics.bleu import BLEU

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training import evaluation
from vanilla_transformer.training.evaluation import (
    corpus_scores,
    evaluate_hypotheses,
    reference_streams,
    single_line,
)

# The example of sacrebleu's README, with the figures printed there.
README_SYSTEM = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
README_STREAMS = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]


def read(path):
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")
    with opened as file:
        return file.read().decode("utf-8").removesuffix("\n").split("\n")


def test_sacrebleus_own_example():
    scores = corpus_scores(README_SYSTEM, README_STREAMS, metrics=["bleu", "chrf"])
    bleu = scores["bleu"]
    assert bleu["score"] == pytest.approx(48.53, abs=0.005)
    assert bleu["precisions"] == pytest.approx([82.4, 50.0, 45.5, 37.5], abs=0.05)
    assert bleu["bp"] == pytest.approx(0.943, abs=0.0005)
    assert (bleu["sys_len"], bleu["ref_len"]) == (17, 18)
    assert bleu["signature"].startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores["chrf"]["score"] == pytest.approx(59.73, abs=0.005)
    assert scores["chrf"]["signature"].startswith("nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_scores_by_hand():
    # unigrams 5/6, bigrams 3/5, trigrams 2/4, 4-grams 1/3, equal lengths: (5/6 * 3/5 * 1/2 * 1/3) ** 0.25
    scores = corpus_scores(["a b c d e x"], ["a b c d f e"], metrics=["bleu", "ter"])
    matched = (5 * 3 * 2 * 1) / (6 * 5 * 4 * 3)
    assert scores["bleu"]["counts"] == [5, 3, 2, 1]
    assert scores["bleu"]["score"] == pytest.approx(100 * matched**0.25)
    # insert f, delete x
    assert scores["ter"]["score"] == pytest.approx(100 * 2 / 6)
    assert corpus_scores(["the cat sat"], ["the dog sat"], metrics=["ter"])["ter"]["score"] == pytest.approx(100 / 3)


def test_chrf_plus_plus_adds_word_bigrams():
    # chrF++ (Popovic 2017): 6 character and 2 word orders, beta 2; here every order matches or none does.
    # "ab cd" against "ab ce": characters without spaces abcd / abce: 3/4, 2/3, 1/2, 0/1; words 1/2, 0/1
    score = corpus_scores(["ab cd"], ["ab ce"], metrics=["chrf++"])["chrf++"]
    assert "nw:2" in score["signature"]
    assert score["score"] == pytest.approx(100 * (3 / 4 + 2 / 3 + 1 / 2 + 0 + 1 / 2 + 0) / 6)


@pytest.mark.parametrize(
    ("lang", "text", "tokenizer"),
    [
        ("zh_CN", "连接到设备，然后重启。", "zh"),
        ("jpn_Jpan", "猫が好きです。犬も好きです。", "ja-mecab"),
        ("ko-KR", "나는 고양이를 좋아합니다.", "ko-mecab"),
    ],
)
def test_an_identical_line_scores_100_in_the_target_languages_own_tokens(lang, text, tokenizer):
    if tokenizer != "zh":
        pytest.importorskip("MeCab" if tokenizer == "ja-mecab" else "mecab_ko")
    scores = corpus_scores([text], [text], target_lang=lang)
    assert scores["bleu"]["score"] == pytest.approx(100)
    assert f"|tok:{tokenizer}" in scores["bleu"]["signature"]
    assert (scores["chrf"]["score"], scores["ter"]["score"]) == (pytest.approx(100), 0)


def test_ter_counts_characters_in_chinese():
    # one of four characters differs; as one unspaced word it would be 100
    ter = corpus_scores(["我爱你们"], ["我爱他们"], target_lang="zh", metrics=["ter"])["ter"]
    assert ter["score"] == pytest.approx(25)
    assert "asian:yes" in ter["signature"]


def test_missing_mecab_names_the_extra(monkeypatch):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(UserError, match=r"vanilla-transformer\[ja\]"):
        corpus_scores(["猫"], ["猫"], target_lang="ja")


def test_a_named_tokenizer_overrides_the_language():
    bleu = corpus_scores(["我爱你们啊"], ["我爱你们啊"], target_lang="zh", tokenize="char", metrics=["bleu"])["bleu"]
    assert "|tok:char|" in bleu["signature"]


@pytest.mark.parametrize(
    ("options", "message"), [({"metrics": ["meteor"]}, "meteor"), ({"tokenize": "moses"}, "moses")]
)
def test_unknown_names_are_usage_errors(options, message):
    with pytest.raises(UsageError, match=message):
        corpus_scores(["a"], ["a"], **options)


def test_chinese_without_a_language_is_warned_about(caplog):
    corpus_scores(["我爱你"], ["我爱你"], metrics=["bleu"])
    assert "target_lang='zh'" in caplog.text


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b", "c"], ["a", "b"], "3 hypotheses but 2 references"),
        (["a", "b", "c"], [["a", "b", "c"], ["a", "b"]], "3 hypotheses but 3, 2 references in 2 streams"),
        (
            ["a", "b", "c"],
            [["a"], ["b"], ["c"]],
            "3 lists of 1 for 3 hypotheses, which is transposed: give 1 streams of 3",
        ),
        (["a", "b", "c"], [["a", "x"], ["b", "y"], ["c", "z"]], "transposed: give 2 streams of 3"),
        (["a", "b"], ["a", ["b"]], "not a string"),
        (["a", "b"], ["a", None], "not a string"),
        (["a"], "a", "list of strings"),
        ("a", ["a"], "list of strings"),
        ([], [], "nothing to score"),
        (["a"], [], "not empty"),
    ],
)
def test_shapes_that_do_not_fit_are_named(hypotheses, references, message):
    with pytest.raises(UserError, match=message):
        corpus_scores(hypotheses, references)


def test_streams_pass_as_they_are():
    assert reference_streams(["a", "b"], ("x", "y")) == [["x", "y"]]
    assert reference_streams(["a", "b"], [("x", "y"), ["z", ""]]) == [["x", "y"], ["z", ""]]


def test_hypotheses_file_keeps_its_lines_whatever_they_hold(tmp_path):
    hypotheses = ["eins", "", "zwei\ndrei", "vier \r\n\n fünf\u2028sechs", "  sieben  "]
    references = ["eins", "x", "zwei drei", "vier fünf", "sieben"]
    result = evaluate_hypotheses(hypotheses, references, "de", tmp_path / "results", name="t1")
    written = (tmp_path / "results" / "t1.hypotheses.txt").read_bytes()
    assert written.decode().split("\n") == ["eins", "", "zwei drei", "vier fünf\u2028sechs", "  sieben  ", ""]
    assert result["sha256"]["hypotheses"] == hashlib.sha256(written).hexdigest()
    assert result["sha256"]["references"] == [
        hashlib.sha256("eins\nx\nzwei drei\nvier fünf\nsieben\n".encode()).hexdigest()
    ]
    assert (result["sentences"], result["empty_hypotheses"], result["reference_streams"]) == (5, 1, 1)
    assert set(result["scores"]) == {"bleu", "chrf", "ter"}
    assert result["versions"]["sacrebleu"] in result["scores"]["bleu"]["signature"]
    assert json.loads((tmp_path / "results" / "t1.json").read_text(encoding="utf-8")) == result
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["t1.hypotheses.txt", "t1.json"]


def test_a_confidence_interval_is_that_of_drawing_sentences_anew():
    # One word a sentence, a quarter of them wrong: TER is 25, and over test sets drawn from these 400 sentences it is
    # binomial, so that 95% of its values lie within 1.96 * 100 * (0.25 * 0.75 / 400) ** 0.5 = 4.24.
    hypotheses, references = ["b", "a", "a", "a"] * 100, ["a"] * 400
    scores = evaluate_hypotheses(hypotheses, references, "de", metrics=["ter", "chrf"])["scores"]
    interval = scores["ter"]["confidence_interval"]
    assert scores["ter"]["score"] == 25
    assert (interval["low"] + interval["high"]) / 2 == pytest.approx(25, abs=0.3)
    assert (interval["high"] - interval["low"]) / 2 == pytest.approx(4.24, abs=0.4)
    assert (interval["resamples"], interval["seed"], interval["level"]) == (1000, "12345", 0.95)
    # It changes neither a score nor the signature that scores are compared by.
    plain = corpus_scores(hypotheses, references, "de", ["ter", "chrf"])
    for name, score in scores.items():
        assert plain[name] == {key: value for key, value in score.items() if key != "confidence_interval"}


def test_no_interval_where_it_would_cost_gigabytes_or_cannot_be(monkeypatch):
    # In some draws of two sentences out of these two there is no word.
    scores = evaluate_hypotheses(["a", ""], ["a", ""], "de", metrics=["ter"])["scores"]
    assert "confidence_interval" not in scores["ter"]
    monkeypatch.setattr(evaluation, "MOST_RESAMPLED_SENTENCES", 3)
    for count, there in ((3, True), (4, False)):
        scores = evaluate_hypotheses(["a b c d"] * count, ["a b c d"] * count, "de", metrics=["bleu"])["scores"]
        assert ("confidence_interval" in scores["bleu"]) is there


def test_a_mismatch_writes_nothing(tmp_path):
    with pytest.raises(UserError, match="2 hypotheses but 1 references"):
        evaluate_hypotheses(["a", "b"], ["a"], "de", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_single_line():
    assert single_line("a \n\t b") == "a b"
    assert single_line("a\rb\r\nc\n") == "a b c "
    assert single_line(" a\u2028b  c ") == " a\u2028b  c "


def test_scores_do_not_depend_on_the_kind_of_sequence():
    rng = random.Random(1)
    hypotheses = [" ".join(rng.choices("a b c d e".split(), k=8)) for _ in range(20)]
    references = [" ".join(rng.choices("a b c d e".split(), k=8)) for _ in range(20)]
    expected = BLEU().corpus_score(hypotheses, [references]).score
    for pair in ((hypotheses, references), (tuple(hypotheses), (references,))):
        assert corpus_scores(*pair, metrics=["bleu"])["bleu"]["score"] == expected
