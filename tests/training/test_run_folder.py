import dataclasses

import pytest

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training import run_folder
from vanilla_transformer.training.recipe import DataConfig, Recipe, TrainingConfig, load_recipe
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.write_errors import WriteError

RECIPE = Recipe(data=DataConfig(corpus="reverse", source_lang="en", target_lang="rev"))


def changed(**training):
    return dataclasses.replace(RECIPE, training=dataclasses.replace(RECIPE.training, **training))


def started(run, recipe=RECIPE, resume=False):
    run.begin(recipe, resume)
    run.record(recipe)


def test_a_start_that_fails_leaves_the_folder_free_and_an_older_recipe_alone(tmp_path):
    run = RunFolder(tmp_path)
    run.begin(RECIPE, resume=False)  # and then the corpus is found wanting
    assert list(tmp_path.iterdir()) == []
    started(run)
    before = run.recipe.read_bytes()
    run.begin(changed(max_steps=7), resume=True)
    assert run.recipe.read_bytes() == before


def test_a_new_run_may_begin_beside_prepared_data_only(tmp_path):
    (tmp_path / "prepared").mkdir()
    (tmp_path / ".lock").touch()
    started(RunFolder(tmp_path))
    assert load_recipe(tmp_path / "recipe.yaml") == RECIPE


def test_a_folder_in_use_is_refused_without_resume(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not empty .it holds thesis.tex.*--resume"):
        RunFolder(tmp_path).begin(RECIPE, resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_begins_a_run_that_does_not_exist_yet(tmp_path):
    started(RunFolder(tmp_path), resume=True)
    assert (tmp_path / "recipe.yaml").exists()


def test_the_length_of_a_run_may_change_but_not_what_an_update_computes(tmp_path):
    run = RunFolder(tmp_path)
    started(run)
    started(run, changed(max_steps=7, save_every=3, log_every=1, threads=2, patience=4), resume=True)
    assert load_recipe(run.recipe).training.max_steps == 7
    with pytest.raises(
        UsageError, match="2 problems\n  training.seed = 2: .*has 1\n  training.warmup_steps = 9: .*4000"
    ):
        run.begin(changed(seed=2, warmup_steps=9), resume=True)
    assert load_recipe(run.recipe).training == dataclasses.replace(
        TrainingConfig(), max_steps=7, save_every=3, log_every=1, threads=2, patience=4
    )


def test_what_an_interrupted_session_left_is_put_right(tmp_path):
    run = RunFolder(tmp_path)
    started(run)
    (tmp_path / ".replaced-best").mkdir()
    (tmp_path / "checkpoints" / ".unfinished-step-4").mkdir(parents=True)
    started(run, resume=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["best", "checkpoints", "recipe.yaml"]


def test_a_disk_that_refuses_the_recipe_is_one_sentence(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(run_folder, "write_text", full)
    with pytest.raises(
        WriteError, match="output folder .* could not be written: No space left on device .*recipe.yaml"
    ):
        RunFolder(tmp_path).record(RECIPE)
