import pytest
from run_files import CONFIG, MANIFEST, on_the_hub, write_result, write_run

from vanilla_transformer.training.model_facts import HubSplit, read_facts


def test_results_of_other_weights_are_not_this_model_s(tmp_path):
    final = write_run(tmp_path / "run")
    write_result(final, "before", weights_sha256="0" * 64)
    write_result(final, "newstest2014")
    assert [result["name"] for result in read_facts(final).results] == ["newstest2014", "test"]
    with open(final / "model.safetensors", "r+b") as weights:  # another model from now on
        weights.seek(-1, 2)
        weights.write(b"\x01")
    assert read_facts(final).results == []


def test_weights_are_counted_and_updates_are_those_of_the_last_session(tmp_path):
    facts = read_facts(write_run(tmp_path / "run"))
    assert (facts.parameters, facts.updates, facts.energy_joules) == (12, 1578, 3_600_000)


def test_a_folder_that_is_in_no_run_has_no_run_s_facts(tmp_path):
    final = write_run(tmp_path / "run")
    (final.parent / "recipe.yaml").unlink()  # a manifest.json may be anybody's
    facts = read_facts(final)
    assert (facts.recipe, facts.manifest, facts.results, facts.updates, facts.corpus) == ({}, {}, [], None, None)


@pytest.mark.parametrize(
    ("source", "target", "codes"),
    [
        ("en", "de", ["en", "de"]),
        ("eng", "zh-Hans", ["eng", "zh"]),
        ("pt_BR", "English", ["pt"]),
        ("src", "trg", []),  # the sides of a made-up task
        (None, None, []),
    ],
)
def test_language_codes_are_the_hub_s(tmp_path, source, target, codes):
    final = write_run(tmp_path / "run", config=CONFIG | {"source_lang": source, "target_lang": target})
    assert read_facts(final).languages == codes


def test_splits_on_the_hub(tmp_path):
    facts = read_facts(write_run(tmp_path / "hub", **on_the_hub(revision="v2")))
    assert facts.corpus == facts.hub_corpus == "org/pairs"
    assert facts.hub_split("test") == HubSplit("org/pairs", None, "newstest", "v2")
    assert facts.hub_split("dev") == HubSplit("org/pairs", None, "validation", "v2")
    assert facts.hub_split(None) is None
    local = read_facts(write_run(tmp_path / "local"))
    assert (local.corpus, local.hub_corpus, local.hub_split("test")) == ("multi30k", None, None)
    several = on_the_hub()
    several["manifest"] = {**MANIFEST, "data": {"sources": several["manifest"]["data"]["sources"] * 2}}
    assert read_facts(write_run(tmp_path / "several", **several)).hub_split("test") is None
