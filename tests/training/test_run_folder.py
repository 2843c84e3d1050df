import dataclasses
import multiprocessing
import os

import pytest

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.recipe import DataConfig, Recipe, TrainingConfig, load_recipe
from vanilla_transformer.training.run_folder import RunFolder, locked

RECIPE = Recipe(data=DataConfig(corpus="reverse", source_lang="en", target_lang="rev"))


def changed(**training):
    return dataclasses.replace(RECIPE, training=dataclasses.replace(RECIPE.training, **training))


def test_a_new_run_may_begin_beside_prepared_data_only(tmp_path):
    (tmp_path / "prepared").mkdir()
    with locked(tmp_path):
        RunFolder(tmp_path).begin(RECIPE, resume=False)
    assert load_recipe(tmp_path / "recipe.yaml") == RECIPE


def test_a_folder_in_use_is_refused_without_resume(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not empty .it holds thesis.tex.*--resume"):
        RunFolder(tmp_path).begin(RECIPE, resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_begins_a_run_that_does_not_exist_yet(tmp_path):
    RunFolder(tmp_path).begin(RECIPE, resume=True)
    assert (tmp_path / "recipe.yaml").exists()


def test_the_length_of_a_run_may_change_but_not_what_an_update_computes(tmp_path):
    run = RunFolder(tmp_path)
    run.begin(RECIPE, resume=False)
    run.begin(changed(max_steps=7, save_every=3, log_every=1, threads=2, patience=4), resume=True)
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
    run.begin(RECIPE, resume=False)
    (tmp_path / ".replaced-best").mkdir()
    (tmp_path / "checkpoints" / ".unfinished-step-4").mkdir(parents=True)
    run.begin(RECIPE, resume=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["best", "checkpoints", "recipe.yaml"]


def test_a_second_run_on_one_folder_is_refused_and_the_lock_ends_with_the_first(tmp_path):
    with locked(tmp_path / "run"):
        with pytest.raises(UserError, match=f"Another run is writing to .*run .process {os.getpid()} on "):
            with locked(tmp_path / "run"):
                pass
    with locked(tmp_path / "run"):
        pass


def test_a_forked_worker_does_not_hold_the_lock(tmp_path):
    started, done = multiprocessing.get_context("fork").Event(), multiprocessing.get_context("fork").Event()
    with locked(tmp_path):
        worker = multiprocessing.get_context("fork").Process(target=lambda: (started.set(), done.wait(30)), daemon=True)
        worker.start()
        assert started.wait(30)
    with locked(tmp_path):  # the worker is still there
        assert worker.is_alive()
    done.set()
    worker.join(30)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), locked(tmp_path / "file" / "run"):
        pass
