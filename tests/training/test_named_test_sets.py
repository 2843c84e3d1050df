"""Test sets by name, from a cache of sacreBLEU's that lies with the shared data, and where nothing can be fetched."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.named_test_sets import load_test_set


@pytest.fixture
def cached(shared_data, monkeypatch):
    """Points a test set of sacreBLEU's, which has read SACREBLEU already, at the shared cache."""

    def point(name: str) -> None:
        monkeypatch.setattr(DATASETS[name], "_outdir", str(shared_data("sacrebleu_cache") / name))

    return point


@pytest.mark.parametrize(
    ("name", "pair", "lines"),  # counts that the data sets publish
    [
        ("wmt14/full", "en-de", 3003),
        ("wmt13", "en-fr", 3000),
        ("iwslt17", "en-zh", 1459),
        ("multi30k/2016", "en-de", 1000),
    ],
)
def test_a_test_set_by_name(cached, name, pair, lines):
    cached(name)
    found = load_test_set(name, pair)
    assert (len(found.sources), len(found.references), len(found.references[0])) == (lines, 1, lines)
    assert found.target_lang == pair.split("-")[1]


def test_the_lines_are_those_of_the_original_files(cached, shared_data):
    cached("wmt14/full")
    found = load_test_set("wmt14/full", "en-de")
    for lang, lines in (("en", found.sources), ("de", found.references[0])):
        with gzip.open(shared_data(f"wmt/newstest2014-full.en-de.{lang}.gz"), "rt", encoding="utf-8") as file:
            assert [line.strip() for line in lines] == [line.strip() for line in file.read().split("\n")[:-1]]


def test_names_that_do_not_exist_are_usage_errors():
    with pytest.raises(UsageError, match="no test set wmt14/fulll; did you mean wmt14/full"):
        load_test_set("wmt14/fulll", "en-de")
    with pytest.raises(UsageError, match="sacrebleu --list"):
        load_test_set("?", "en-de")
    with pytest.raises(UsageError, match="multi30k/2016 has no language pair de-en; it has en-cs, en-de, en-fr"):
        load_test_set("multi30k/2016", "de-en")


def test_what_cannot_be_fetched_says_where_it_was_looked_for(tmp_path, monkeypatch):
    dataset = DATASETS["wmt14/full"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "raw"))
    monkeypatch.setattr(dataset, "data", ["http://127.0.0.1:9/test-full.tgz"])  # a port where nobody answers
    with pytest.raises(UserError, match=r"wmt14/full en-de is not in .* could not be fetched .*set SACREBLEU"):
        load_test_set("wmt14/full", "en-de")


@pytest.mark.integration
def test_evaluate_by_name(shared_data, tmp_path: Path):
    # EXPECTED.tsv: 27.2 published by mozilla/firefox-translations-models, 27.1868 computed with sacreBLEU alone
    hypotheses = shared_data("wmt_sysout/iwslt17.en-de.bergamot-base-memory.de.gz")
    named = ("--testset", "iwslt17", "--language-pair", "en-de", "--metric", "bleu", "--output-dir", tmp_path)
    command = [
        sys.executable,
        "-m",
        "vanilla_transformer",
        "evaluate",
        "--hypotheses",
        str(hypotheses),
        *map(str, named),
    ]
    environment = os.environ | {"SACREBLEU": str(shared_data("sacrebleu_cache"))}
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["scores"]["bleu"]["score"] == pytest.approx(27.1868, abs=5e-5)
    assert (result["test_set"], result["target_lang"], result["sentences"]) == ("iwslt17 en-de", "de", 1138)
    assert json.loads((tmp_path / "iwslt17.en-de.json").read_text(encoding="utf-8")) == result
