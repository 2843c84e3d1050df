"""The ways to a pipeline: from objects, a folder or a Hub id, by task name or class; what each needs, and saving it."""

import copy

import pytest
import torch
from transformers import pipeline

import vanilla_transformer as vt


@pytest.fixture(scope="module")
def folder(memorised, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pipeline") / "memorised"
    vt.TranslationPipeline(model=memorised.model, tokenizer=memorised.tokenizer).save_pretrained(path)
    return str(path)


def knows(pipe, memorised) -> bool:
    results = pipe(list(memorised.pairs), batch_size=2)
    return [result["translation_text"] for result in results] == list(memorised.pairs.values())


@pytest.mark.parametrize("task", ["translation", "translation_en_to_zh", "translation_xx_to_yy"])
@pytest.mark.parametrize("way", [{"pipeline_class": vt.TranslationPipeline}, {"trust_remote_code": True}])
def test_a_folder_by_any_name_of_the_task(memorised, folder, task, way):
    pipe = pipeline(task, model=folder, **way)
    assert pipe.task == task
    assert knows(pipe, memorised)


@pytest.mark.parametrize("task", ["translation", "translation_en_to_zh"])
def test_objects_by_any_name_of_the_task(memorised, task):
    """With the config: transformers looks for a model's own tasks nowhere else."""
    parts = {"model": memorised.model, "tokenizer": memorised.tokenizer}
    pipe = pipeline(task, config=memorised.model.config, pipeline_class=vt.TranslationPipeline, **parts)
    assert knows(pipe, memorised)
    # If transformers ever takes its removed tasks from a registry again, the guide can drop what it says of this.
    with pytest.raises(KeyError, match="removed"):
        pipeline(task, pipeline_class=vt.TranslationPipeline, **parts)


def test_a_saved_pipeline_is_a_folder_that_gives_the_same_again(memorised, folder, tmp_path):
    pipe = pipeline("translation_en_to_zh", model=folder, pipeline_class=vt.TranslationPipeline)
    pipe.save_pretrained(tmp_path / "again")
    assert knows(pipeline("translation", model=str(tmp_path / "again"), trust_remote_code=True), memorised)
    assert "TranslationPipeline" in repr(pipe)


def test_the_library_s_pipeline_function_leaves_a_config_that_can_be_saved(memorised, tmp_path):
    model = copy.deepcopy(memorised.model)
    for number in range(2):
        pipe = pipeline(
            "translation",
            model=model,
            config=model.config,
            tokenizer=memorised.tokenizer,
            pipeline_class=vt.TranslationPipeline,
        )
        pipe.save_pretrained(tmp_path / str(number))
    assert pipe("No.") == [{"translation_text": "否。"}]
    assert (tmp_path / "0" / "config.json").read_bytes() == (tmp_path / "1" / "config.json").read_bytes()


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"device_map": "auto"}, {"device_map": "cpu"}, {"device": -1}]
)
def test_precision_and_device_are_the_library_s(memorised, folder, options):
    pipe = pipeline("translation", model=folder, pipeline_class=vt.TranslationPipeline, **options)
    assert pipe.model.dtype == (torch.bfloat16 if "dtype" in options else torch.float32)
    assert knows(pipe, memorised)
