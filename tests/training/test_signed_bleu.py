import socket

import pytest

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.signed_bleu import SignedBleu

# sacrebleu's README: BLEU 48.53 with these two references a sentence
PREDICTIONS = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [
    ["The dog bit the man.", "The dog had bit the man."],
    ["It was not unexpected.", "No one was surprised."],
    ["The man bit him first.", "The man had bitten the dog."],
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a metric must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_references_for_each_prediction():
    result = SignedBleu().compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["score"] == pytest.approx(48.53, abs=0.005)
    assert result["signature"].startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert (result["sys_len"], result["ref_len"]) == (17, 18)


def test_batches_add_up_and_a_metric_can_be_used_again():
    metric = SignedBleu(target_lang="en")
    for _ in range(2):
        metric.add_batch(predictions=PREDICTIONS[:2], references=REFERENCES[:2])
        metric.add(prediction=PREDICTIONS[2], reference=REFERENCES[2])
        assert metric.compute()["score"] == pytest.approx(48.53, abs=0.005)


def test_one_reference_each():
    result = SignedBleu().compute(predictions=["a b c d e x"], references=["a b c d f e"])
    # unigrams 5/6, bigrams 3/5, trigrams 2/4, 4-grams 1/3
    assert result["score"] == pytest.approx(100 * (5 * 3 * 2 / (6 * 5 * 4 * 3)) ** 0.25)
    assert result["signature"].startswith("nrefs:1|")


def test_target_language_at_construction_or_at_the_call():
    text = ["连接到设备，然后重启。"]
    assert SignedBleu(target_lang="zh-CN").compute(predictions=text, references=text)["score"] == pytest.approx(100)
    result = SignedBleu().compute(predictions=text, references=[text], target_lang="zho_Hans")
    assert result["score"] == pytest.approx(100) and "|tok:zh|" in result["signature"]


def test_uneven_references_are_an_error():
    with pytest.raises(UserError, match="from 1 to 2 references"):
        SignedBleu().compute(predictions=["a", "b"], references=[["a"], ["b", "c"]])


def test_counts_that_do_not_match_are_an_error():
    with pytest.raises(ValueError, match="Mismatch in the number of predictions"):
        SignedBleu().compute(predictions=["a", "b"], references=["a"])
