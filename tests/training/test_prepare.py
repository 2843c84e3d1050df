import subprocess
import sys
from dataclasses import replace

import datasets
import pytest

from vanilla_transformer.configuration.errors import CorpusError, UsageError
from vanilla_transformer.training import prepare as prepare_module
from vanilla_transformer.training.prepare import prepare
from vanilla_transformer.training.recipe_sections import DataConfig, Recipe, TokenizerConfig

ENGLISH = ["the device is on", "the device is off", "turn the device on </s>", "too  many spaces", "off", "on"]
CHINESE = ["设备已打开", "设备已关闭", "打开设备</s>", "空格太多", "关闭", "打开"]


@pytest.fixture
def recipe(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, rows in (("train", range(4)), ("dev", [4]), ("test", [5])):
        for language, lines in (("en", ENGLISH), ("zh", CHINESE)):
            text = "".join(f"{lines[row]}\n" for row in rows)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    data = DataConfig(corpus=str(folder), source_lang="en", target_lang="zh")
    data = replace(data, train="train.{lang}", dev="dev.{lang}", test="test.{lang}")
    return Recipe(data=data, tokenizer=TokenizerConfig(vocab_size=300))


def translations(split):
    return [(row["translation"]["en"], row["translation"]["zh"]) for row in split]


def test_training_pairs_become_ids_that_decode_to_the_text(recipe, tmp_path):
    prepared = prepare(recipe, tmp_path / "run")
    rows = prepared.train[:]
    for name, lines in (("source_ids", ENGLISH[:4]), ("target_ids", CHINESE[:4])):
        assert [prepared.tokenizer.decode(ids[:-1]) for ids in rows[name]] == lines
        # One end token each, also where the text says </s>.
        assert all(ids[-1] == 2 and ids.count(2) == 1 for ids in rows[name])
    assert rows["line"] == [1, 2, 3, 4]


def test_dev_and_test_stay_raw(recipe, tmp_path):
    prepared = prepare(recipe, tmp_path / "run")
    assert translations(prepared.dev) == [(ENGLISH[4], CHINESE[4])]
    assert translations(prepared.test) == [(ENGLISH[5], CHINESE[5])]
    without = prepare(
        replace(recipe, data=replace(recipe.data, dev=None, test=None, corpus=_train_only(recipe))), tmp_path
    )
    assert without.dev is None and without.test is None


def _train_only(recipe):
    from pathlib import Path

    folder = Path(recipe.data.corpus).with_name("train-only")
    folder.mkdir()
    for language in ("en", "zh"):
        name = f"train.{language}"
        (folder / name).write_bytes((Path(recipe.data.corpus) / name).read_bytes())
    return str(folder)


def test_longer_pairs_are_dropped_and_counted(recipe, tmp_path):
    words = replace(recipe, tokenizer=TokenizerConfig(vocab_size=300, type="words"))
    # In words and </s>: 5, 5, 6 and 4 on the English side.
    prepared = prepare(replace(words, data=replace(words.data, max_length=5)), tmp_path / "run")
    assert prepared.train["line"][:] == [1, 2, 4]
    counters = prepared.facts["counters"]["train"]
    assert (counters["read"], counters["kept"], counters["too_many_tokens"]) == (4, 3, 1)
    assert counters["read"] == sum(count for name, count in counters.items() if name != "read")
    assert prepared.facts["tokens"] == {"source": 5 + 5 + 4, "target": 2 + 2 + 2}
    with pytest.raises(CorpusError, match="data.max_length = 3: no training pair is that short"):
        prepare(replace(words, data=replace(words.data, max_length=3)), tmp_path / "other")
    assert [path.name for path in (tmp_path / "other" / "prepared").iterdir()] == [".lock"]


def test_a_second_call_finds_what_the_first_has_made(recipe, tmp_path, monkeypatch):
    first = prepare(recipe, tmp_path / "run")

    def fail(*_):
        raise AssertionError("prepared again")

    monkeypatch.setattr(prepare_module, "train_tokenizer", fail)
    second = prepare(recipe, tmp_path / "run")
    assert second.fingerprint == first.fingerprint
    assert second.train[:] == first.train[:]
    assert second.tokenizer.get_vocab() == first.tokenizer.get_vocab()
    assert second.facts == first.facts


@pytest.mark.parametrize(
    "change",
    [
        lambda recipe: replace(recipe, data=replace(recipe.data, lowercase=True)),
        lambda recipe: replace(recipe, data=replace(recipe.data, max_length=100)),
        lambda recipe: replace(recipe, data=replace(recipe.data, limit=3)),
        lambda recipe: replace(recipe, data=replace(recipe.data, source_lang="zh", target_lang="en")),
        lambda recipe: replace(recipe, tokenizer=replace(recipe.tokenizer, vocab_size=299)),
        lambda recipe: replace(recipe, tokenizer=replace(recipe.tokenizer, type="words")),
        lambda recipe: _append(recipe, "train", "another line", "另一行"),
        lambda recipe: _append(recipe, "dev", "turn the device on </s>", "打开设备"),
    ],
)
def test_other_data_or_settings_are_prepared_anew(recipe, tmp_path, change):
    first = prepare(recipe, tmp_path / "run")
    second = prepare(change(recipe), tmp_path / "run")
    assert second.fingerprint != first.fingerprint
    # The outdated files are gone.
    names = {path.name for path in (tmp_path / "run" / "prepared").iterdir()}
    assert names == {".lock", second.fingerprint}


def _append(recipe, split, source, target):
    for language, line in (("en", source), ("zh", target)):
        with open(f"{recipe.data.corpus}/{split}.{language}", "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    return recipe


def test_moved_data_are_the_same_data(recipe, tmp_path):
    first = prepare(recipe, tmp_path / "run")
    (tmp_path / "corpus").rename(tmp_path / "moved")
    moved = replace(recipe, data=replace(recipe.data, corpus=str(tmp_path / "moved")))
    assert prepare(moved, tmp_path / "elsewhere").fingerprint == first.fingerprint


def test_a_damaged_file_is_made_again(recipe, tmp_path):
    first = prepare(recipe, tmp_path / "run")
    rows = first.train[:]
    arrow = tmp_path / "run" / "prepared" / first.fingerprint / "train.arrow"
    content = arrow.read_bytes()
    arrow.unlink()  # not truncated in place: the file is mapped into memory here
    arrow.write_bytes(content[:-100])
    assert prepare(recipe, tmp_path / "run").train[:] == rows


def test_a_trained_tokenizer_is_used_as_it_is(recipe, tmp_path):
    first = prepare(recipe, tmp_path / "run")
    path = str(tmp_path / "run" / "prepared" / first.fingerprint / "tokenizer")
    second = prepare(replace(recipe, tokenizer=TokenizerConfig(path=path)), tmp_path / "other")
    assert second.facts["vocabulary"] == first.facts["vocabulary"]
    assert second.train[:] == first.train[:]
    with pytest.raises(UsageError, match="tokenizer.path = .*absent: no such folder"):
        prepare(replace(recipe, tokenizer=TokenizerConfig(path=str(tmp_path / "absent"))), tmp_path / "third")


def test_a_streamed_corpus_gives_the_vocabulary_and_the_pairs_as_they_come(recipe, tmp_path):
    whole = prepare(recipe, tmp_path / "run")
    streaming = replace(recipe, data=replace(recipe.data, streaming=True))
    prepared = prepare(streaming, tmp_path / "streamed")
    assert prepared.tokenizer.get_vocab() == whole.tokenizer.get_vocab()
    assert prepared.fingerprint != whole.fingerprint
    assert translations(prepared.dev) == translations(whole.dev)
    assert "train" not in prepared.facts["counters"]
    (update,) = prepared.train.updates(1000, 1000, seed=1, epoch=0, pad_id=1)
    texts = prepared.tokenizer.batch_decode(update.batches[0]["input_ids"], skip_special_tokens=True)
    assert dict(zip(update.lines.tolist(), texts, strict=True)) == dict(enumerate(ENGLISH[:4], 1))
    elsewhere = replace(recipe, data=replace(recipe.data, streaming=True, train=["train.{lang}"]))
    assert prepare(elsewhere, tmp_path / "streamed").fingerprint != prepared.fingerprint


@pytest.mark.integration
def test_processes_that_start_together_prepare_once(recipe, tmp_path):
    script = f"""
import logging, sys
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
from vanilla_transformer.training.prepare import prepare
from vanilla_transformer.training.recipe_sections import *
prepared = prepare({recipe!r}, {str(tmp_path / "run")!r})
print("fingerprint", prepared.fingerprint, len(prepared.train))
"""
    runs = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert sum("Learning a vocabulary." in output for output in outputs) == 1


def test_the_vocabulary_of_a_large_corpus_is_learned_from_pairs_all_over_it(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "LINES_PER_BATCH", 2)
    pairs = datasets.Dataset.from_list([{"translation": {"en": f"s{row}", "de": f"t{row}"}} for row in range(7)])
    # 3/7, 6/7 | 9/7, 12/7 | 15/7, 18/7 | 21/7: a whole number is passed with pairs 2, 4 and 6, counted from 0
    chosen = [
        side for sides in prepare_module._sides(pairs, ("en", "de"), wanted=3) for side in zip(*sides, strict=True)
    ]
    assert chosen == [("s2", "t2"), ("s4", "t4"), ("s6", "t6")]
    everything = [
        side for sides in prepare_module._sides(pairs, ("en", "de"), wanted=7) for side in zip(*sides, strict=True)
    ]
    assert [source for source, _ in everything] == [f"s{row}" for row in range(7)]

    whole = prepare(recipe, tmp_path / "whole")
    monkeypatch.setattr(prepare_module, "VOCABULARY_PAIRS", 1)
    sampled = prepare(recipe, tmp_path / "sampled")
    assert len(sampled.tokenizer) < len(whole.tokenizer)
    assert sampled.fingerprint != whole.fingerprint
    assert len(sampled.train) == len(whole.train)
