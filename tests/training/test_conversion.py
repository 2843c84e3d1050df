"""Whole folders or nothing, with a page that says what differs and code that runs."""

import re
import sys

import pytest
from small_models import small_model, taught
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.modeling.converters.words_tokenizer import words_tokenizer
from vanilla_transformer.training.conversion import WRITERS, convert_from, convert_to

TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "A", "sentence.", "Another", "one.", *(f"w{number}" for number in range(15))]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A model folder of ours that reverses its input's words."""
    folder = tmp_path_factory.mktemp("ours") / "model"
    taught(small_model(noise=0.1), steps=200).save_pretrained(folder)
    words_tokenizer(TOKENS, unk="<unk>", pad="<pad>", bos="<s>", eos="</s>").save_pretrained(folder)
    return str(folder)


def code_of(page) -> str:
    [code] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return code


@pytest.mark.integration
@pytest.mark.parametrize("format", WRITERS)
def test_the_page_in_the_folder_says_what_differs_and_how_to_translate(
    format, model_folder, tmp_path, monkeypatch, capsys
):
    notes = convert_to(format, model_folder, tmp_path / "out")
    page = tmp_path / "out" / "CONVERSION.md"
    assert all(f"- {note}" in page.read_text(encoding="utf-8") for note in notes)
    assert any("GNMT" in note for note in notes)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(model_folder), AutoTokenizer.from_pretrained(model_folder)
    batch = tokenizer(["A sentence.", "Another one."], padding=True, return_tensors="pt")
    search = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False} if format == "onnx" else {}
    wanted = tokenizer.batch_decode(model.generate(**batch, **search), skip_special_tokens=True)
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "out")
    exec(compile(code_of(page), str(page), "exec"), {})
    printed = capsys.readouterr().out
    assert all(text and text in printed for text in wanted)


def test_there_and_back_through_marian(model_folder, tmp_path, monkeypatch, capsys):
    convert_to("marian", model_folder, tmp_path / "marian")
    notes = convert_from("marian", tmp_path / "marian", tmp_path / "back")
    assert notes == ["Positions: the Marian model ends at 1024, this one has no limit."]
    monkeypatch.chdir(tmp_path / "back")
    capsys.readouterr()
    names: dict = {}
    exec(compile(code_of(tmp_path / "back" / "CONVERSION.md"), "page", "exec"), names)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    search = {"length_penalty_type": "power", "early_stopping": False, "max_new_tokens": 20}
    wanted = names["tokenizer"].batch_decode(model.generate(**names["batch"], **search), skip_special_tokens=True)
    assert capsys.readouterr().out == f"{wanted}\n" and all(wanted)


def test_nothing_is_left_of_a_conversion_that_failed(tmp_path):
    small_model(norm_position="pre").save_pretrained(tmp_path / "model")
    words = words_tokenizer(TOKENS, unk="<unk>", pad="<pad>", bos="<s>", eos="</s>")
    words.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="norm_position = pre"):
        convert_to("marian", str(tmp_path / "model"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_wrong_usage_is_found_before_any_work(tmp_path, model_folder):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="full already exists; give the converted model a new folder"):
        convert_to("marian", model_folder, tmp_path / "full")
    with pytest.raises(UsageError, match="--to fairseq: choose from marian, ctranslate2, onnx"):
        convert_to("fairseq", model_folder, tmp_path / "out")
    with pytest.raises(UsageError, match="--from onnx: choose from marian, joeynmt, ctranslate2"):
        convert_from("onnx", tmp_path, tmp_path / "out")
    with pytest.raises(UsageError, match="nowhere: no such file or folder"):
        convert_from("marian", tmp_path / "nowhere", tmp_path / "out")


def test_a_missing_library_is_named_with_its_extra(tmp_path, model_folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "vanilla_transformer.modeling.converters.ctranslate2", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "ctranslate2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r'needs ctranslate2.*: pip install "vanilla-transformer\[ctranslate2\]"'):
        convert_to("ctranslate2", model_folder, tmp_path / "out")
