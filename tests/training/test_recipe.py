"""A recipe is read strictly: what is wrong is reported together, what is right survives a round trip."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.recipe import SECTIONS, Recipe, load_recipe, recipe_from_mapping, to_mapping, to_yaml

REVERSE: dict[str, Any] = {"data": {"corpus": "reverse", "source_lang": "digits", "target_lang": "stigid"}}
MINIMAL = "data: {corpus: reverse, source_lang: digits, target_lang: stigid}\n"


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(mapping: dict[str, Any], *overrides: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        recipe_from_mapping(mapping, overrides)
    assert caught.value.exit_code == 2
    head, *lines = str(caught.value).splitlines()
    assert head == f"recipe given: {len(lines)} problem{'s' if len(lines) > 1 else ''}"
    return [line.removeprefix("  ") for line in lines]


def test_defaults_are_the_papers():
    # Vaswani et al. 2017, sections 5.1, 5.3, 6.1 and Table 3
    recipe = recipe_from_mapping(REVERSE)
    assert (recipe.model.preset, recipe.tokenizer.vocab_size) == ("base", 37000)
    assert (recipe.training.max_steps, recipe.training.warmup_steps) == (100_000, 4000)
    assert (recipe.training.max_source_tokens, recipe.training.max_target_tokens) == (25_000, 25_000)
    assert (recipe.training.adam_beta1, recipe.training.adam_beta2, recipe.training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (recipe.training.learning_rate, recipe.training.max_grad_norm, recipe.training.average_last) == (
        None,
        None,
        5,
    )
    assert (recipe.generation.num_beams, recipe.generation.length_penalty) == (4, 0.6)
    assert recipe.generation.max_new_tokens_over_input == 50


def test_every_problem_is_reported_at_once_with_its_remedy(tmp_path: Path):
    text = """
data: {corpus: reverse, source_lang: digits, target_lang: stigid}
model: {preset: null, d_model: 128, num_heads: 6}
training: {max_source_token: 100, seed: "1", warmup_steps: 0}
evalution: {metrics: [bleu]}
"""
    with pytest.raises(UsageError) as caught:
        load_recipe(write(tmp_path, text), ["training.precision=float16"])
    head, *lines = str(caught.value).splitlines()
    assert head == "recipe my.yaml: 6 problems"
    start = {line.strip().split(":")[0] for line in lines}
    assert start == {
        "model.num_heads = 6",
        "training.max_source_token = 100",
        "training.seed = 1",
        "training.warmup_steps = 0",
        "evalution",
        "training.precision = float16",
    }
    together = "\n".join(lines)
    assert "unknown key; did you mean training.max_source_tokens?" in together
    assert "unknown section; did you mean evaluation?" in together
    assert "does not divide d_model = 128" in together
    assert "training.precision = float16: must be float32 or bfloat16" in together


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("training.seed", "training.seed: must be section.key=value, for example training.seed=3"),
        ("seed=3", "seed=3: must be section.key=value, for example training.seed=3"),
        ("trainin.seed=3", "trainin.seed: unknown section; did you mean training?"),
        ("training.sed=3", "training.sed = 3: unknown key; did you mean training.seed?"),
        ("training.vocab_size=3", "training.vocab_size = 3: unknown key; did you mean tokenizer.vocab_size?"),
        ("training.seed=true", "training.seed = true: must be a whole number"),
        ("training.seed=1.0", "training.seed = 1.0: must be a whole number"),
        ("training.learning_rate=fast", "training.learning_rate = fast: must be a number or null"),
        ("training.learning_rate=nan", "training.learning_rate = nan: must be a number or null"),
        ("training.adam_beta2=1", "training.adam_beta2 = 1.0: must be at least 0 and below 1"),
        ("training.compile=yes", "training.compile = yes: must be true or false"),
        ("training.average_last=6", "training.average_last = 6: more than keep_last = 5; raise keep_last"),
        ("evaluation.metrics=bleu", "evaluation.metrics = bleu: must be a list of bleu or chrf or ter"),
        ("evaluation.metrics=[blue]", "evaluation.metrics = ['blue']: must be a list of bleu or chrf or ter"),
        ("evaluation.metrics=[]", "evaluation.metrics = []: name at least one of bleu, chrf, ter"),
        ("data.target_lang=digits", "data.target_lang = digits: is the source language too"),
        ("data.source_lang=null", "data.source_lang = null: must be text"),
        ("data.corpus=revers", "data.corpus = revers: unknown; did you mean reverse?"),
        ("model.vocab_size=9", "model.vocab_size = 9: not a recipe's choice; set tokenizer.vocab_size"),
        ("model.hidden_size=9", "model.hidden_size = 9: unknown key; did you mean model.d_model?"),
    ],
)
def test_an_override_that_cannot_be_is_named(override: str, line: str):
    assert line in problems_of(REVERSE, override)


def test_model_problems_come_under_their_section():
    lines = problems_of(REVERSE, "model.dropout=1.5", "model.norm_position=prae", "model.preset=bse")
    assert any(line.startswith("model.preset = 'bse': unknown; did you mean base?") for line in lines)
    lines = problems_of(REVERSE, "model.dropout=1.5", "model.norm_position=prae", "model.d_modl=512")
    assert any(line.startswith("model.dropout = 1.5: ") for line in lines)
    assert any(line.startswith("model.norm_position = 'prae': ") for line in lines)
    assert "model.d_modl = 512: unknown key; did you mean model.d_model?" in lines


def test_missing_data_keys_are_named():
    assert set(problems_of({})) == {"data.corpus: missing", "data.source_lang: missing", "data.target_lang: missing"}


def test_overrides_win_over_the_file_and_are_read_as_yaml(tmp_path: Path):
    path = write(tmp_path, MINIMAL + "training: {seed: 1, learning_rate: 5e-4}\n")
    overrides = [
        "training.seed=2",
        "training.seed=3",
        "training.max_grad_norm=1",
        "evaluation.metrics=[bleu, chrf]",
        "data.revision=2024",
        "data.source_lang=no",
        "model.d_ff=64",
        "training.early_stopping_metric=loss",
    ]
    recipe = load_recipe(path, overrides)
    assert recipe.training.seed == 3
    assert recipe.training.learning_rate == 0.0005
    assert recipe.training.max_grad_norm == 1.0
    assert recipe.evaluation.metrics == ["bleu", "chrf"]
    assert recipe.data.revision == "2024"
    assert recipe.data.source_lang == "no"  # Norwegian, not false
    assert recipe.model.fields == {"d_ff": 64}
    assert recipe.model.to_config(100).d_ff == 64


@pytest.mark.parametrize("text", ['"1e-3"', "1e-3", "0.001", ".001", "1.0e-3"])
def test_numbers_in_every_spelling(tmp_path: Path, text: str):
    path = write(tmp_path, f"{MINIMAL}training: {{learning_rate: {text}}}\n")
    assert load_recipe(path).training.learning_rate == 0.001


def test_the_resolved_recipe_loads_to_an_equal_one(tmp_path: Path):
    overrides = [
        "data.source_lang=no",
        "data.target_lang=en",
        "data.train=['a: #b.{lang}', '1e5']",
        "model.preset=C-n2",
        "model.norm_position=pre",
        "training.learning_rate=3e-4",
        "training.max_minutes=0.5",
        "tracking.project=项目 ☃",
        "evaluation.tokenize=zh",
    ]
    recipe = recipe_from_mapping(REVERSE, overrides)
    assert load_recipe(write(tmp_path, to_yaml(recipe))) == recipe
    # Also for scripts with PyYAML's own reader, which is of YAML 1.1.
    assert yaml.safe_load(to_yaml(recipe)) == to_mapping(recipe)
    assert recipe.data.train == ["a: #b.{lang}", "1e5"]


def test_the_resolved_recipe_names_every_key():
    written = yaml.safe_load(to_yaml(recipe_from_mapping(REVERSE)))
    assert list(written) == [field.name for field in dataclasses.fields(Recipe)]
    for section, kind in SECTIONS.items():
        if section != "model":
            assert list(written[section]) == [field.name for field in dataclasses.fields(kind)]


def test_paths_are_found_in_the_working_directory_then_beside_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for corpus in ("here/corpus", "recipes/corpus"):
        (tmp_path / corpus).mkdir(parents=True)
        (tmp_path / corpus / "train.tsv").touch()
    (tmp_path / "elsewhere").mkdir()
    path = write(tmp_path / "recipes", "data: {corpus: corpus, source_lang: en, target_lang: de}\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_recipe(path).data.corpus == str(tmp_path / "recipes" / "corpus")
    monkeypatch.chdir(tmp_path / "here")
    recipe = load_recipe(path)
    assert recipe.data.corpus == str(tmp_path / "here" / "corpus")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(write(tmp_path, to_yaml(recipe), "resolved.yaml")) == recipe


def test_a_hub_id_is_left_alone_and_a_missing_path_is_named():
    mapping = {"data": REVERSE["data"] | {"corpus": "wmt/wmt14"}}
    assert recipe_from_mapping(mapping).data.corpus == "wmt/wmt14"
    for missing in ("./wmt14", "../data/wmt14", "data/wmt/14", "/data/wmt14"):
        [line] = problems_of(mapping, f"data.corpus={missing}")
        assert line.startswith(f"data.corpus = {missing}: no such file or folder (looked ")


def test_missing_files_of_a_folder_are_all_named(tmp_path: Path):
    (tmp_path / "train.en.gz").touch()
    (tmp_path / "dev-1.tsv").touch()
    mapping = {
        "data": {
            **{"corpus": str(tmp_path), "source_lang": "en", "target_lang": "de"},
            **{"train": "train.{lang}.gz", "dev": "dev-*.tsv", "test": ["a.tsv", "b.tsv"]},
        }
    }
    found = problems_of(mapping, "training.seed=-1")
    assert [line.split(":")[0] for line in found] == [
        "training.seed = -1",
        "data.train = train.{lang}.gz",
        "data.test = a.tsv",
        "data.test = b.tsv",
    ]
    assert "train.de.gz" in found[1]


def test_a_corpus_may_be_a_file_or_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("x.en", "x.de", "y.tsv"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for corpus in ("x.{lang}", "y.tsv"):
        mapping = {"data": {"corpus": corpus, "source_lang": "en", "target_lang": "de"}}
        assert recipe_from_mapping(mapping).data.corpus == str(tmp_path / corpus)
    [line] = problems_of({"data": {"corpus": "z.tsv", "source_lang": "en", "target_lang": "de"}})
    assert line == f"data.corpus = z.tsv: no such file or folder (looked in {tmp_path})"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ": holds nothing; a recipe maps data, model, training, ... to their keys"),
        ("- data\n", ": holds a list; a recipe maps data, model, training, ... to their keys"),
        ("hello\n", ": holds a single value; a recipe maps data, model, training, ... to their keys"),
        ("data: {corpus: a}\ndata: {corpus: b}\n", ", line 2: data stands twice"),
        ("training:\n  seed: 1\n  log_every: 1\n  seed: 2\n", ", line 4: seed stands twice"),
        (
            "data:\n  corpus: !!python/object/apply:os.system [touch /tmp/owned]\n",
            ", line 2: !!python/object/apply:os.system would construct an object; a recipe holds plain values only",
        ),
        ("data: [\n", ", line 2: "),
        ("data:\n\tcorpus: x\n", ", line 2: "),
        ("data: " + "[" * 5000, ": is nested too deep"),
        ("data: \x00", ": "),
        ("--- {}\n--- {}\n", ", line 2: "),
    ],
)
def test_text_that_is_no_recipe_gives_one_sentence(tmp_path: Path, text: str, sentence: str):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(f"recipe {path}{sentence}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_cannot_be_read_gives_one_sentence(tmp_path: Path):
    with pytest.raises(UsageError, match="no such file"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_recipe(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("data: {corpus: Köln}\n".encode("latin-1"))
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        load_recipe(latin)


def test_sections_that_are_empty_or_no_mapping():
    assert recipe_from_mapping(REVERSE | {"training": None}).training.seed == 1
    assert problems_of(REVERSE | {"training": [1]}) == ["training = [1]: must map keys to values"]


def test_patience_on_bleu_needs_decoding():
    [line] = problems_of(REVERSE, "training.patience=3", "evaluation.decode=false")
    assert "training.early_stopping_metric = loss" in line
    recipe_from_mapping(
        REVERSE, ["training.patience=3", "evaluation.decode=false", "training.early_stopping_metric=loss"]
    )


def test_a_recurrent_model_has_its_own_fields():
    mapping = {"data": REVERSE["data"], "model": {"architecture": "recurrent_seq2seq", "cell": "gru", "d_model": 64}}
    recipe = recipe_from_mapping(mapping)
    config = recipe.model.to_config(100)
    assert (config.model_type, config.cell, config.d_model) == ("recurrent_seq2seq", "gru", 64)
    assert recipe_from_mapping(to_mapping(recipe)) == recipe
    mapping["model"] |= {"num_heads": 4, "attention": "dot", "preset": "big"}
    mapping["training"] = {"activation_checkpointing": True}
    with pytest.raises(UsageError) as caught:
        recipe_from_mapping(mapping)
    assert "model.num_heads: no field of recurrent_seq2seq; it has " in str(caught.value)
    assert "training.activation_checkpointing = true: recurrent models do not have it" in str(caught.value)
    del mapping["model"]["num_heads"]
    with pytest.raises(UsageError, match="model.preset = big: presets are the Transformer's; leave it out"):
        recipe_from_mapping(mapping)
    mapping["model"] |= {"preset": None}
    with pytest.raises(UsageError, match="model.attention = 'dot': choose none or additive or multiplicative"):
        recipe_from_mapping(mapping)
    with pytest.raises(UsageError, match="model.cell: no field of vanilla_transformer"):
        recipe_from_mapping({"data": REVERSE["data"], "model": {"cell": "gru"}})
