"""MarianMTModel folders to ours and back, against what transformers' own class computes with them."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import random_tokens, small_config, small_model, taught
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel, MarianTokenizer

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.modeling.converters import marian
from vanilla_transformer.modeling.converters.words_tokenizer import words_tokenizer
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.conversion import convert_from
from vanilla_transformer.training.saved_model import load_model
from vanilla_transformer.training.translation import score_pairs, translate


@pytest.fixture(scope="module")
def converted(marian_folder):
    return marian.read(marian_folder)


@pytest.fixture(scope="module")
def words():
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(19))]
    return words_tokenizer(tokens, unk="<unk>", pad="<pad>", bos="<s>", eos="</s>")


def changed(folder, copy, **fields):
    """A copy of the folder whose config.json says something else."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8")) | fields
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return copy


def logits(model, batch, target):
    with torch.no_grad():
        return model.eval()(**batch, decoder_input_ids=target).logits


def test_logits_equal_on_real_sentences(marian_folder, converted, multi30k):
    theirs, tokenizer = MarianMTModel.from_pretrained(marian_folder), MarianTokenizer.from_pretrained(marian_folder)
    batch = tokenizer(multi30k["en"][:32], text_target=multi30k["de"][:32], padding=True, return_tensors="pt")
    target = batch.pop("labels")
    wanted = logits(theirs, batch, target)
    assert wanted.std() > 1
    torch.testing.assert_close(logits(converted.model, batch, target), wanted, rtol=1e-4, atol=1e-4)


def test_the_saved_folder_tokenises_and_translates_as_marian_does(marian_folder, converted, multi30k, tmp_path):
    converted.model.save_pretrained(tmp_path)
    converted.tokenizer.save_pretrained(tmp_path)
    tokenizer, original = AutoTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(marian_folder)
    sentences = [*multi30k["en"][:200], "", "¿Qué? — «Ünïcode» 中文 …"]
    assert tokenizer(sentences).input_ids == original(sentences).input_ids
    assert tokenizer(text_target=multi30k["de"][:200]).input_ids == original(text_target=multi30k["de"][:200]).input_ids

    model, theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), MarianMTModel.from_pretrained(marian_folder)
    assert isinstance(model, VanillaTransformerForConditionalGeneration)
    batch = tokenizer(multi30k["en"][:8], padding=True, return_tensors="pt")
    ours, wanted = (
        tokenizer.batch_decode(m.eval().generate(**batch), skip_special_tokens=True) for m in (model, theirs)
    )
    assert ours == wanted
    assert len(set(wanted)) > 1 and all(wanted)


def test_our_own_commands_translate_with_a_converted_folder(marian_folder, multi30k, tmp_path):
    convert_from("marian", marian_folder, tmp_path / "ours")
    model, tokenizer = load_model(tmp_path / "ours", device="cpu")
    sentences = multi30k["en"][:8]
    theirs, batch = (
        MarianMTModel.from_pretrained(marian_folder),
        tokenizer(sentences, padding=True, return_tensors="pt"),
    )
    wanted = tokenizer.batch_decode(theirs.eval().generate(**batch), skip_special_tokens=True)
    assert translate(model, tokenizer, sentences) == wanted
    # As the model ranks its own translation: log P(target | source), the same in both.
    labels = tokenizer(text_target=multi30k["de"][:1], return_tensors="pt").input_ids
    loss = theirs(**tokenizer(sentences[:1], return_tensors="pt"), labels=labels).loss.item()
    assert score_pairs(model, tokenizer, sentences[:1], multi30k["de"][:1]) == pytest.approx(
        [-loss * labels.numel()], rel=1e-4
    )


def test_what_training_further_needs_is_carried_over(converted):
    config = converted.model.config
    assert (config.dropout, config.label_smoothing, config.embedding_sharing) == (0.2, 0.0, "all")
    assert (config.source_lang, config.target_lang) == ("en", "de")


def test_everything_that_cannot_be_expressed_is_said_at_once(marian_folder, tmp_path):
    folder = changed(
        marian_folder,
        tmp_path / "odd",
        scale_embedding=False,
        normalize_before=True,
        activation_function="gelu_new",
        decoder_ffn_dim=64,
        decoder_vocab_size=700,
        share_encoder_decoder_embeddings=False,
    )
    with pytest.raises(UserError) as refused:
        marian.read(folder)
    head, *lines = str(refused.value).split("\n")
    assert head == f"convert {folder}: 5 problems"
    assert [line.split(":")[0].strip() for line in lines] == [
        "scale_embedding = False",
        "normalize_before = True",
        "activation_function = gelu_new",
        "encoder_ffn_dim = 48 and decoder_ffn_dim = 64",
        f"vocab_size = {json.loads((folder / 'config.json').read_text())['vocab_size']} and decoder_vocab_size = 700",
    ]


def test_tables_that_are_not_sinusoids_and_lost_weights_are_refused(marian_folder, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(marian_folder, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.encoder.embed_positions.weight"] = torch.zeros(128, 32)
    del weights["model.decoder.layers.1.fc1.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as refused:
        marian.read(folder)
    assert "weight model.decoder.layers.1.fc1.bias: missing in the file" in str(refused.value)
    assert "model.encoder.embed_positions.weight: not the sinusoids" in str(refused.value)


def test_a_folder_of_another_model_is_refused(tmp_path):
    small_model().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="of type vanilla_transformer, and not a MarianMTModel"):
        marian.read(tmp_path)
    with pytest.raises(UserError, match="cannot be loaded as a MarianMTModel folder"):
        marian.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "fields",
    [
        {},  # the paper's: interleaved sinusoids, no biases
        {"attention_bias": True, "output_bias": True, "activation": "gelu", "embedding_sharing": "decoder"},
        {"sinusoid_layout": "concatenated", "activation": "swish", "embedding_sharing": "none"},
    ],
    ids=["paper", "decoder", "none"],
)
def test_written_folders_have_our_logits(fields, words, tmp_path):
    model = small_model(layer_norm_eps=1e-5, **fields)
    marian.write(model, words, tmp_path)
    source, target = random_tokens(4, 7), random_tokens(4, 6, seed=1)
    source[1, 4:] = model.config.pad_token_id
    batch = {"input_ids": source, "attention_mask": source.ne(model.config.pad_token_id).long()}
    theirs = MarianMTModel.from_pretrained(tmp_path)
    wanted = logits(model, batch, target)
    assert wanted.std() > 1
    torch.testing.assert_close(logits(theirs, batch, target), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(marian.read(tmp_path).model, batch, target), wanted, rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path)("w3 w1").input_ids == [7, 5, 2]


def test_a_written_folder_translates_as_ours_under_one_length_penalty(words, tmp_path):
    model = taught(small_model())
    notes = marian.write(model, words, tmp_path)
    theirs, source = MarianMTModel.from_pretrained(tmp_path).eval(), random_tokens(20, 5)
    ours = model.generate(source, length_penalty_type="power", early_stopping=False, max_new_tokens=12)
    assert theirs.generate(source, max_new_tokens=12).tolist() == ours.tolist()
    said = "\n".join(notes)
    assert "GNMT's ((5 + length) / 6) ^ 0.6, which MarianMTModel does not have" in said
    assert "50 tokens over each input's length" in said
    assert "layer_norm_eps = 1e-06: MarianMTModel computes with 1e-05" in said
    assert "label_smoothing = 0.1" in said


def test_what_marian_cannot_express_is_said_at_once(words, tmp_path):
    config = small_config(
        norm_position="pre",
        positional_encoding="learned",
        max_source_positions=9,
        max_target_positions=9,
        d_k=3,
        d_v=5,
    )
    with pytest.raises(UserError) as refused:
        marian.write(VanillaTransformerForConditionalGeneration(config), words, tmp_path)
    assert [line.split(" =")[0].strip() for line in str(refused.value).split("\n")] == [
        "convert the model to Marian: 4 problems",
        "norm_position",
        "positional_encoding",
        "d_k",
        "d_v",
    ]
    assert not any(tmp_path.iterdir())
