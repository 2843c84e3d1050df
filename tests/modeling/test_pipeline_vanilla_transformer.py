"""The translation pipeline against what the model has learned by heart and against generate called by hand."""

import copy
import logging

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GenerationConfig, PreTrainedTokenizerFast, TextStreamer
from transformers.pipelines.pt_utils import KeyDataset
from transformers.utils.logging import warning_once as logging_once

import vanilla_transformer as vt

# Neither learned nor of one length: what the model makes of them is not the same text five times.
UNSEEN = ["light", "Connect to the network, please!", "is on", "The device is low. The battery is connected.", "No no"]


@pytest.fixture(scope="module")
def pipe(memorised):
    return vt.TranslationPipeline(model=memorised.model, tokenizer=memorised.tokenizer)


@pytest.fixture
def library_log(caplog):
    """caplog that hears transformers' loggers, which do not propagate, and ours, each message again."""
    loggers = [logging.getLogger(name) for name in ("transformers", "vanilla_transformer")]
    logging_once.cache_clear()
    for logger in loggers:
        logger.addHandler(caplog.handler)
    yield caplog
    for logger in loggers:
        logger.removeHandler(caplog.handler)


def texts(results):
    return [result["translation_text"] for result in results]


def by_hand(memorised, text, **kwargs):
    """Token ids of one sentence decoded alone."""
    return memorised.model.generate(**memorised.tokenizer(text, return_tensors="pt"), **kwargs)


def test_a_string_gives_a_list_of_one_dict(pipe):
    assert pipe("Connect to the device.") == [{"translation_text": "连接到设备。"}]


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_a_list_gives_a_list_in_order(pipe, memorised, batch_size):
    results = pipe(list(memorised.pairs) * 2, batch_size=batch_size)
    assert results == [{"translation_text": target} for target in memorised.pairs.values()] * 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_text_does_not_depend_on_the_batch(memorised, side):
    tokenizer = copy.deepcopy(memorised.tokenizer)
    tokenizer.padding_side = side
    pipe = vt.TranslationPipeline(model=memorised.model, tokenizer=tokenizer)
    alone = [pipe(text)[0] for text in UNSEEN]
    assert len(set(texts(alone))) > 2
    assert pipe(UNSEEN, batch_size=len(UNSEEN)) == alone


def test_several_sequences_for_each_sentence(pipe, memorised):
    sources = ["The light", "No."]
    expected = [
        [{"translation_text": text} for text in memorised.tokenizer.batch_decode(ids, skip_special_tokens=True)]
        for ids in (by_hand(memorised, source, num_return_sequences=3) for source in sources)
    ]
    assert len({result["translation_text"] for result in expected[0]}) == 3
    assert pipe(sources[0], num_return_sequences=3) == expected[0]
    assert pipe(sources, num_return_sequences=3) == expected
    assert pipe(sources, num_return_sequences=3, batch_size=2) == expected


def test_token_ids_in_place_of_the_text_or_with_it(pipe, memorised):
    ids = by_hand(memorised, "Unknown")[0]
    [result] = pipe("Unknown", return_tensors=True)
    assert list(result) == ["translation_token_ids"]
    assert torch.equal(result["translation_token_ids"], ids)
    [result] = pipe("Unknown", return_tensors=True, return_text=True)
    assert set(result) == {"translation_token_ids", "translation_text"}
    assert list(pipe(["Unknown", "No."], return_tensors=True, batch_size=2)[0]) == ["translation_token_ids"]


def test_generate_arguments_reach_generate_and_a_call_overrides_the_constructor(memorised):
    pipe = vt.TranslationPipeline(model=memorised.model, tokenizer=memorised.tokenizer, max_new_tokens=2, num_beams=1)
    length = {}
    for name, kwargs in {"constructor": {}, "call": {"max_new_tokens": 4}}.items():
        [result] = pipe("The device is connected to the network and the light is on.", return_tensors=True, **kwargs)
        length[name] = len(result["translation_token_ids"])
    assert length == {"constructor": 1 + 2, "call": 1 + 4}
    config = GenerationConfig(max_new_tokens=3, eos_token_id=2, pad_token_id=1, decoder_start_token_id=0)
    assert len(pipe("Unknown" * 3, return_tensors=True, generation_config=config)[0]["translation_token_ids"]) <= 1 + 3
    with pytest.raises(ValueError, match="num_baems"):
        pipe("Unknown", num_baems=2)


def test_scores_may_be_asked_of_generate(pipe):
    assert pipe("No.", return_dict_in_generate=True, output_scores=True) == [{"translation_text": "否。"}]


def test_stop_strings_find_the_tokenizer(pipe):
    source = "The device is connected to the network and the light is on."
    [result] = pipe(source, stop_strings=["网络"], num_beams=1)
    # The string may end inside a token.
    assert result["translation_text"].startswith("设备已连接到网络")
    assert len(result["translation_text"]) < len("设备已连接到网络，灯已打开。")


def test_a_streamer_gets_the_text_as_it_comes(pipe, memorised, capsys):
    pipe("The battery is low.", num_beams=1, streamer=TextStreamer(memorised.tokenizer, skip_special_tokens=True))
    assert capsys.readouterr().out == "电池电量低。\n"


def test_a_streamer_of_beams_is_refused_by_the_library(pipe, memorised):
    # Beams change their minds; the message names what to set.
    with pytest.raises(ValueError, match="num_beams"):
        pipe("The battery is low.", streamer=TextStreamer(memorised.tokenizer))


def test_an_assistant_model_drafts_and_changes_no_text(memorised):
    assistant = copy.deepcopy(memorised.model)
    drafts = []
    assistant.register_forward_hook(lambda *_: drafts.append(1))
    pipe = vt.TranslationPipeline(
        model=memorised.model, tokenizer=memorised.tokenizer, assistant_model=assistant, num_beams=1
    )
    assert pipe("The battery is low.") == [{"translation_text": "电池电量低。"}]
    assert drafts


def column(items):
    return datasets.Dataset.from_dict({"en": items})["en"]


def nested_column(items):
    return datasets.Dataset.from_list([{"translation": {"en": item, "zh": ""}} for item in items])["translation"]["en"]


def translation_column(items):
    """Of the Hub's own kind of column for parallel text, which has no columns inside until it is flattened."""
    rows = {"translation": [{"en": item, "zh": ""} for item in items]}
    features = datasets.Features({"translation": datasets.Translation(languages=("en", "zh"))})
    return datasets.Dataset.from_dict(rows, features=features).flatten()["translation.en"]


@pytest.mark.parametrize("many", [tuple, np.array, pd.Series, column, nested_column, translation_column])
def test_tuples_arrays_and_dataset_columns_are_lists(pipe, memorised, many):
    assert texts(pipe(many(list(memorised.pairs)), batch_size=3)) == list(memorised.pairs.values())


def generator(rows):
    return (row["en"] for row in rows)


def key_dataset(rows):
    return KeyDataset(datasets.Dataset.from_dict({"en": [row["en"] for row in rows]}), "en")


def streaming_column(rows):
    return datasets.Dataset.from_list(rows).to_iterable_dataset()["en"]


def streaming_translation_column(rows):
    nested = [{"translation": {"en": row["en"], "zh": ""}} for row in rows]
    return datasets.Dataset.from_list(nested).to_iterable_dataset()["translation"]["en"]


def iterator(rows):
    return iter([row["en"] for row in rows])


class TorchStream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return generator(self.rows)


STREAMS = [generator, key_dataset, streaming_column, streaming_translation_column, iterator, TorchStream]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_gives_a_stream(pipe, memorised, stream, batch_size):
    rows = [{"en": source, "n": number} for number, source in enumerate(memorised.pairs)]
    results = pipe(stream(rows), batch_size=batch_size)
    assert not isinstance(results, list)
    assert list(results) == [[{"translation_text": target}] for target in memorised.pairs.values()]


def test_a_generator_is_read_as_it_is_translated(pipe):
    read = []

    def endless():
        while True:
            read.append(1)
            yield "No."

    results = iter(pipe(endless(), batch_size=2))
    assert next(results) == [{"translation_text": "否。"}]
    # The batch and the first item, which the library looks at.
    assert len(read) <= 4


def test_nothing_in_nothing_out(pipe):
    assert pipe([]) == []
    assert list(pipe(text for text in [])) == []
    assert list(pipe(key_dataset([]))) == []


@pytest.mark.parametrize("blank", ["", " ", "\t \n", "\u3000"])
def test_blank_lines_stay_blank(pipe, blank):
    assert pipe(blank) == [{"translation_text": ""}]
    assert texts(pipe(["No.", blank, "Unknown"], batch_size=3)) == ["否。", "", "未知"]
    assert pipe([blank, "No."], num_return_sequences=2, batch_size=2)[0] == [{"translation_text": ""}] * 2
    # <s> </s>, then padding
    assert pipe(blank, return_tensors=True)[0]["translation_token_ids"][:3].tolist() == [0, 2, 1]


ODD = [
    "🙂 👩‍👩‍👧 🏳️‍🌈",  # characters that no training text had: spelled in bytes
    "\u200b",  # looks blank and is no space
    "line\nbreak\ttab",
    "</s> <s> <pad>",
    "ａｂｃ １２３",
    "e\u0301 \u202eright to left\u202c",
]


def test_odd_text_is_translated_as_generate_would(pipe, memorised):
    expected = [memorised.tokenizer.decode(by_hand(memorised, text)[0], skip_special_tokens=True) for text in ODD]
    assert texts(pipe(ODD, batch_size=2)) == expected


def test_a_very_long_text_is_translated_whole(pipe, memorised):
    text = "light " * 3000
    [result] = pipe(text, num_beams=1, max_new_tokens=5, return_tensors=True)
    tokens = memorised.tokenizer(text, return_tensors="pt")["input_ids"]
    assert tokens.shape[1] > 3000
    expected = memorised.model.generate(input_ids=tokens, num_beams=1, max_new_tokens=5)
    assert torch.equal(result["translation_token_ids"], expected[0])


@pytest.mark.parametrize(
    "wrong", [4, None, b"No.", {"text": "No."}, ["No.", 3], [["No."]], ("No.", None), torch.tensor([1, 2])]
)
def test_what_is_no_text_is_refused(pipe, wrong):
    with pytest.raises(TypeError, match="takes a string, or a list, column or stream of strings; got"):
        pipe(wrong)


def test_a_whole_dataset_is_refused_with_the_remedy(pipe):
    rows = datasets.Dataset.from_list([{"en": "No.", "zh": "否。"}])
    with pytest.raises(TypeError, match="pass one column"):
        pipe(rows)
    with pytest.raises(TypeError, match="pass one column"):
        list(pipe(rows.to_iterable_dataset()))


def test_languages_are_accepted_and_others_than_the_model_s_noticed(pipe, memorised, library_log):
    assert pipe("No.", src_lang="en", tgt_lang="zh_CN") == [{"translation_text": "否。"}]
    assert not library_log.messages
    assert pipe("No.", tgt_lang="fr") == [{"translation_text": "否。"}]
    assert "trained with target_lang 'zh'; 'fr' changes nothing" in library_log.text
    # The task's name may name them too.
    vt.TranslationPipeline(model=memorised.model, tokenizer=memorised.tokenizer, task="translation_de_to_zh")
    assert "trained with source_lang 'en'; 'de' changes nothing" in library_log.text


def test_spaces_before_punctuation_are_cleaned_up_if_asked(memorised):
    # The library does so for tokenizers of words only.
    words = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, "No": 2, ".": 3}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")
    pipe = vt.TranslationPipeline(model=memorised.model, tokenizer=tokenizer)
    outputs = {"output_ids": torch.tensor([[[2, 3]]])}
    assert pipe.postprocess(outputs) == [{"translation_text": "No ."}]
    assert pipe.postprocess(outputs, clean_up_tokenization_spaces=True) == [{"translation_text": "No."}]


def test_sinusoids_have_no_limit_and_learned_positions_a_named_one(memorised, pipe, library_log):
    assert pipe("light " * 30, truncation=True) == pipe("light " * 30)
    assert not library_log.messages

    fields = {name: getattr(memorised.model.config, name) for name in ("vocab_size", "d_model", "d_ff", "num_heads")}
    torch.manual_seed(2)
    config = vt.VanillaTransformerConfig(
        **fields, positional_encoding="learned", max_source_positions=8, max_target_positions=16
    )
    learned = vt.VanillaTransformerForConditionalGeneration(config)
    limited = vt.TranslationPipeline(model=learned, tokenizer=memorised.tokenizer, max_new_tokens=5)
    tokens = memorised.tokenizer("light " * 30)["input_ids"]
    with pytest.raises(ValueError, match=f"{len(tokens)} tokens .* positions end at 8: .* truncation=True"):
        limited("light " * 30)
    # The first 7 tokens and </s>.
    cut = torch.tensor([tokens[:7] + [2]])
    expected = learned.eval().generate(input_ids=cut, attention_mask=torch.ones_like(cut), max_new_tokens=5)
    [result] = limited("light " * 30, truncation=True, return_tensors=True)
    assert torch.equal(result["translation_token_ids"], expected[0])
    assert f"A source of {len(tokens)} tokens was cut to its first 8." in library_log.text


def test_a_limit_of_the_tokenizer_cuts_with_a_warning_too(memorised, library_log):
    tokenizer = copy.deepcopy(memorised.tokenizer)
    tokenizer.model_max_length = 6
    pipe = vt.TranslationPipeline(model=memorised.model, tokenizer=tokenizer, max_new_tokens=5)
    tokens = memorised.tokenizer("light " * 30)["input_ids"]
    [result] = pipe("light " * 30, truncation=True, return_tensors=True)
    cut = torch.tensor([tokens[:5] + [2]])
    assert torch.equal(result["translation_token_ids"], memorised.model.generate(cut, max_new_tokens=5)[0])
    assert f"A source of {len(tokens)} tokens was cut to its first 6." in library_log.text
    # What fits is left alone, and nothing is cut unasked.
    library_log.clear()
    assert pipe("No.", truncation=True) == pipe("No.")
    assert (
        pipe("light " * 30, return_tensors=True)[0]["translation_token_ids"].tolist()
        == by_hand(memorised, "light " * 30, max_new_tokens=5)[0].tolist()
    )
    assert "was cut" not in library_log.text


def test_a_model_in_training_translates_without_dropout_and_stays_in_training(memorised):
    model = copy.deepcopy(memorised.model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    pipe = vt.TranslationPipeline(model=model.train(), tokenizer=memorised.tokenizer)
    assert pipe("The battery is low.") == [{"translation_text": "电池电量低。"}]
    assert model.training and model.model.encoder.layers[0].training


def test_no_tokenizer_is_said_at_once(memorised):
    with pytest.raises(ValueError, match="needs a tokenizer"):
        vt.TranslationPipeline(model=memorised.model)
