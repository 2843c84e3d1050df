import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from run_files import BLEU, MANIFEST, on_the_hub, write_run

from vanilla_transformer.training.card import MARK, TEMPLATE, render_card, write_card
from vanilla_transformer.training.model_facts import read_facts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def final(tmp_path) -> Path:
    return write_run(tmp_path / "run")


def card(final: Path, **arguments) -> str:
    return render_card(read_facts(final), **arguments)


def cells(text: str, first: str) -> list[str]:
    """The cells of the table row that begins so."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_every_fact_of_the_run_is_there(final):
    text = card(final, repo_id="org/name")
    assert cells(text, "6 + 3") == ["6 + 3", "512", "2048", "8", "37,000", "12"]
    assert cells(text, "multi30k | BLEU")[2:] == ["27.90", "26.50 to 29.30", "`" + BLEU.replace("|", "\\|") + "`"]
    assert cells(text, "multi30k | chrF2")[2:4] == ["55.00", ""]
    assert cells(text, "split | read") == ["split", "read", "kept", "empty"]  # no column for what never happened
    assert cells(text, "train | 29,001") == ["train", "29,001", "29,000", "1"]
    assert cells(text, "train | train.en") == ["train", "train.en", "29,001", f"`{'a' * 64}`"]
    for fact in (
        "1,578 updates on 1,810,370 source and 1,554,896 target tokens, seed 3",
        "Wall time: 8.5 minutes",
        "Hardware: 2 threads of AMD EPYC; Linux-6.18",
        "Energy of the processors while training: 1 kWh",  # 3.6 MJ
        f"Code: vanilla-transformer 0.1.0, commit {'d' * 40} and changes that are in no commit",
        "Libraries: torch 2.13.0, sacrebleu 2.6.0",
        "Begun on 2026-11-30",
        "It has seen 29,000 sentence pairs of one corpus, none longer than 99 tokens",
        "ends at the latest 50 tokens above",
        "1,000 bootstrap resamples, seed 12345",
        "num_beams 4, length_penalty 0.6",
        f"`{'e' * 64}`",
        "29.02 and 27.52",
        'model="org/name"',
    ):
        assert fact in text, fact
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    assert recipe["training"] == {"seed": 3, "warmup_steps": 4321}


def test_nothing_of_the_machine_that_trained_is_in_it(final):
    assert "/home" not in card(final, repo_id="org/name") and str(final) not in card(final, repo_id="org/name")
    assert f'model="{final}"' in card(final)


def test_what_no_file_says_is_left_out(final):
    def headings() -> list[str]:
        return re.findall(r"^## (.*)", card(final, repo_id="org/name"), re.MULTILINE)

    every = ["Intended use and limits", "Use", "Training data", "Training", "Results", "Citation"]
    assert headings() == every
    (final.parent / "results" / "test.json").unlink()
    assert headings() == [heading for heading in every if heading != "Results"]
    text = card(final, repo_id="org/name")
    assert "model-index" not in text and "No measurement of its quality has been recorded" in text
    (final.parent / "manifest.json").unlink()
    assert headings() == ["Intended use and limits", "Use", "Training", "Citation"]
    (final.parent / "recipe.yaml").unlink()
    assert headings() == ["Intended use and limits", "Use", "Citation"]
    (final / "generation_config.json").unlink()
    (final / "model.safetensors").unlink()
    text = card(final, repo_id="org/name")
    assert headings() == ["Intended use and limits", "Use", "Citation"]
    assert cells(text, "6 + 3") == ["6 + 3", "512", "2048", "8", "37,000"]
    for word in ("None", "license:", "datasets:", "nan", "metrics:"):
        assert word not in text.partition("## Citation")[0], word


def test_an_energy_that_was_not_measured_throughout_is_left_out(tmp_path):
    sessions = [MANIFEST["sessions"][0], {"started": "2026-12-01T07:00:00+00:00", "last_step": 1578}]
    assert "kWh" not in card(write_run(tmp_path / "run", manifest=MANIFEST | {"sessions": sessions}))


def test_the_hub_s_client_reads_the_metadata_back(final):
    loaded = ModelCard(card(final, repo_id="org/name", license="cc-by-4.0"))
    data = loaded.data.to_dict()
    [index] = data.pop("model-index")
    assert data == {
        "language": ["en", "de"],
        "license": "cc-by-4.0",
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["vanilla-transformer"],
        "metrics": ["chrf", "sacrebleu"],
    }
    assert index["name"] == "name"
    [result] = index["results"]
    assert result["task"] == {"type": "translation", "name": "Translation en-de"}
    assert result["dataset"] == {"name": "multi30k", "type": "multi30k", "split": "test"}
    bleu, chrf = result["metrics"]
    assert (bleu["type"], bleu["name"], bleu["value"]) == ("sacrebleu", "BLEU", 27.9)
    assert bleu["args"] == {"signature": BLEU, "confidence_interval": [26.5, 29.3], "confidence_level": 0.95}
    assert chrf["args"].keys() == {"signature"}
    # And again: a card that has been through the client says the same.
    assert ModelCard(str(loaded)).data.to_dict() == loaded.data.to_dict()
    assert loaded.text.strip().startswith(f"<!-- {MARK} -->")


def test_a_corpus_on_the_hub_is_named_by_its_id(tmp_path):
    text = card(write_run(tmp_path / "run", **on_the_hub(name="de-en", revision="v2")), repo_id="org/name")
    data = ModelCard(text).data
    assert data.datasets == ["org/pairs"]
    [bleu, _] = data.eval_results
    assert (bleu.dataset_type, bleu.dataset_config, bleu.dataset_split) == ("org/pairs", "de-en", "newstest")
    assert bleu.dataset_revision == "v2"
    assert "[org/pairs](https://huggingface.co/datasets/org/pairs)" in text


def test_a_fine_tuned_model_names_its_base_where_others_can_find_it(tmp_path):
    hub = write_run(tmp_path / "hub", manifest=MANIFEST | {"base_model": "org/base"})
    assert ModelCard(card(hub)).data.base_model == "org/base"
    local = write_run(tmp_path / "local", manifest=MANIFEST | {"base_model": "/home/me/runs/base"})
    text = card(local, repo_id="org/name")
    assert ModelCard(text).data.base_model is None and "from `base`" in text and "/home" not in text


def test_a_recurrent_model_does_not_pass_for_a_transformer(tmp_path):
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 256, "vocab_size": 4000}
    config = {"model_type": "recurrent_seq2seq", "cell": "lstm", "attention": "additive", **sizes}
    text = card(write_run(tmp_path / "run", config=config))
    assert "a recurrent encoder-decoder (lstm, with additive attention), for comparison with the model of" in text
    assert cells(text, "2 + 2") == ["2 + 2", "256", "lstm", "4,000", "12"]
    assert ModelCard(text).data.language is None


@pytest.mark.integration
def test_a_trained_run_leaves_its_card(trained):
    text = (trained.run / "final" / "README.md").read_text(encoding="utf-8")
    scores = json.loads((trained.run / "results" / "test.json").read_text(encoding="utf-8"))["scores"]
    manifest = json.loads((trained.run / "manifest.json").read_text(encoding="utf-8"))
    bleu = cells(text, "pairs | BLEU")
    assert bleu[2] == f"{scores['bleu']['score']:.2f}" and " to " in bleu[3]
    assert bleu[4].replace("\\|", "|") == f"`{scores['bleu']['signature']}`"
    assert f"{manifest['parameters']:,}" == cells(text, "1 + 1")[-1]
    assert "150 updates on" in text and f"seed {manifest['seed']}" in text
    for source in manifest["data"]["sources"]:
        assert source["sha256"] in text
    assert 'model="run/final"' in text and str(trained.folder) not in text
    assert ModelCard(text).data.language == ["en", "zh"]


def test_a_card_that_its_user_has_taken_over_stays(final):
    path = final / "README.md"
    write_card(read_facts(final), "org/name", license="mit")
    write_card(read_facts(final), "org/other")  # the license stays
    text = path.read_text()
    assert "license: mit" in text and "org/other" in text and "org/name" not in text
    mine = text.replace(f"<!-- {MARK} -->\n", "").replace("Translates", "Dreams")
    path.write_text(mine)
    write_card(read_facts(final), "org/third", license="apache-2.0")
    assert path.read_text() == mine


def test_the_citation_is_the_package_s(final):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    entry = re.search(r"@software\{.*?\n\}", card(final), re.DOTALL)[0]
    fields = dict(re.findall(r"(\w+) += \{(.*)\}", entry))
    assert fields["title"] == citation["title"] and fields["license"] == citation["license"]
    assert fields["author"] == citation["authors"][0]["name"] and fields["version"] == version("vanilla-transformer")
    assert "Vaswani, Ashish" in card(final)


def test_the_template_is_the_one_at_the_root():
    assert TEMPLATE.read_bytes() == (ROOT / "model_card.md").read_bytes()
