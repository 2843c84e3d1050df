import pytest

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.finetune_recipe import FinetuningConfig, finetune_recipe
from vanilla_transformer.training.recipe import to_mapping
from vanilla_transformer.training.recipe_yaml import read_mapping, write_mapping


def test_flags_and_overrides_meet_in_one_recipe(tmp_path):
    settings = FinetuningConfig("runs/base/final", seed=3, max_steps=40)
    overrides = ["data.max_length=100", "evaluation.metrics=[bleu, chrf]", "data.drop_duplicates=false"]
    recipe = finetune_recipe(settings, "reverse", "fwd", "rev", overrides)
    assert (recipe.data.corpus, recipe.data.source_lang, recipe.data.target_lang) == ("reverse", "fwd", "rev")
    assert (recipe.data.max_length, recipe.data.drop_duplicates) == (100, False)
    assert recipe.evaluation.metrics == ["bleu", "chrf"]
    path = tmp_path / "recipe.yaml"
    path.write_text(write_mapping(to_mapping(recipe)))
    kept = read_mapping(path)
    assert set(kept) == {"data", "finetuning", "evaluation"}
    assert kept["finetuning"]["model"] == "runs/base/final" and kept["finetuning"]["max_steps"] == 40


def test_everything_wrong_is_said_at_once(tmp_path):
    settings = FinetuningConfig(
        "m", seed=-1, learning_rate=0.0, epochs=0, max_steps=0, batch_size=0, patience=0, precision="int8", lora_rank=0
    )
    overrides = ["training.seed=3", "data.max_lenght=5", "data.streaming=true", "evaluation.dev_limit=0"]
    with pytest.raises(UsageError) as caught:
        finetune_recipe(settings, str(tmp_path / "nowhere"), "en", "de", overrides)
    message = str(caught.value)
    for expected in (
        "--seed = -1: must be at least 0",
        "--learning-rate = 0.0: must be above 0",
        "--epochs = 0: must be above 0",
        "--max-steps = 0: must be at least 1",
        "--batch-size = 0: must be at least 1",
        "--patience = 0: must be at least 1",
        "--precision = int8: must be float32 or bfloat16",
        "--lora-rank = 0: must be at least 1",
        "--set training.seed=3: finetune takes keys of data and evaluation; the rest are flags",
        "data.max_lenght = 5: unknown key; did you mean data.max_length?",
        "evaluation.dev_limit = 0: must be at least 1",
        "nowhere: no such file or folder",
    ):
        assert expected in message
    assert message.startswith("finetune: 12 problems\n")


def test_a_stream_has_no_length_to_plan_by():
    with pytest.raises(UsageError, match="data.streaming = true: finetune needs to know how long the corpus is"):
        finetune_recipe(FinetuningConfig("m"), "reverse", "a", "b", ["data.streaming=true"])
