"""`vanilla-transformer finetune ID --push ID`: a model of the Hub's, taught here, and pushed."""

import json

import pytest
import scenarios
from hub_clients import Place, run_cli
from localhub import LocalHub

pytestmark = pytest.mark.integration

AS_THEY_ARE = ["--set", "data.drop_test_overlap=false", "--set", "data.drop_duplicates=false"]


@pytest.fixture
def corpus(trained, tmp_path):
    """The six sentences, to be copied."""
    folder = tmp_path / "copy"
    folder.mkdir()
    lines = [f"{source}\t{source}\n" for source in trained.pairs]
    for split, text in (("train", lines * 4), ("test", lines)):
        (folder / f"{split}.tsv").write_text("".join(text), encoding="utf-8")
    return folder


def test_a_model_by_its_id_is_taught_and_pushed(hub: LocalHub, place: Place, final, corpus, tmp_path):
    base, mine, run = place.repo("base"), place.repo("mine"), tmp_path / "mine"
    scenarios.pushed(place, final, base)
    settings = ["--learning-rate", "5e-3", "--batch-size", "4", "--max-steps", "60", *AS_THEY_ARE]
    command = ["finetune", base, "--corpus", corpus, "--output-dir", run, *settings, "--json"]
    done = run_cli(place.environment(), *command, "--push", mine, "--private")
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert shown["before"]["bleu"]["score"] < 20 and shown["after"]["bleu"]["score"] == pytest.approx(100)
    repo = hub.repo(mine)
    [commit] = repo.pushed_commits()
    assert shown["commit"].endswith(f"/{mine}/commit/{commit.id}")
    loaded = scenarios.loads(place, ["no ."], {"id": mine, "trust_remote_code": True})[0]
    assert loaded["weights"] == scenarios.hash_of(run / "final")
    assert [text.split() for text in loaded["translations"]] == [["no", "."]]
    card = repo.resolve("main").files["README.md"].data.decode()
    assert f"base_model: {base}\n" in card and "|tok:zh|" in card.replace("\\|", "|")


def test_a_token_that_may_not_write_loses_no_work(place: Place, final, corpus, tmp_path):
    base, run = place.repo("base"), tmp_path / "mine"
    scenarios.pushed(place, final, base)
    command = ["finetune", base, "--corpus", corpus, "--output-dir", run, "--max-steps", "1", *AS_THEY_ARE]
    done = run_cli(place.environment(token=place.reader), *command, "--push", place.repo("mine"))
    assert done.code == 1 and "may not write to" in done.err
    assert f"{run / 'final'}\n" in done.out and (run / "final" / "model.safetensors").exists()
    scenarios.pushed(place, run / "final", place.repo("mine"))
