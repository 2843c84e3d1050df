"""What CTranslate2 computes with a converted model against what ours computes; and its models, converted to ours."""

import gzip
import json
import random
import shutil
import struct

import ctranslate2
import pytest
import torch
from small_models import random_tokens, small_model, taught

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.modeling.converters import ctranslate2 as writing
from vanilla_transformer.modeling.converters import ctranslate2_reading as reading
from vanilla_transformer.modeling.converters.ctranslate2_file import read_file
from vanilla_transformer.modeling.converters.ctranslate2_variables import engine_positions
from vanilla_transformer.modeling.converters.words_tokenizer import words_tokenizer

BOS, PAD, EOS = 0, 1, 2
KINDS = {
    "paper": {},
    "pre-norm": {"norm_position": "pre", "attention_bias": True, "output_bias": True, "activation": "gelu"},
    "learned": {
        "positional_encoding": "learned",
        "max_source_positions": 30,
        "max_target_positions": 40,
        "activation": "swish",
        "embedding_sharing": "none",
    },
    "heads": {"d_k": 3, "d_v": 5, "embedding_sharing": "decoder", "sinusoid_layout": "concatenated"},
}


SPECIAL = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
TOKENS = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(19))]


@pytest.fixture(scope="module")
def words():
    return words_tokenizer(TOKENS, **SPECIAL)


@pytest.fixture(params=KINDS)
def model(request):
    return taught(small_model(noise=0.1, **KINDS[request.param]))


def sources(count: int) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
    """Rows of 3 to 7 tokens and </s>, and the same as a padded batch."""
    lengths = random.Random(1)
    rows = [row[: lengths.randint(3, 7)] + [EOS] for row in random_tokens(count, 7).tolist()]
    batch = torch.full((count, 8), PAD)
    for number, row in enumerate(rows):
        batch[number, : len(row)] = torch.tensor(row)
    return rows, {"input_ids": batch, "attention_mask": batch.ne(PAD).long()}


def test_probabilities_equal(model, words, tmp_path):
    writing.write(model, words, tmp_path)
    rows, batch = sources(12)
    target = random_tokens(12, 6, seed=4)
    start = torch.full((12, 1), BOS)
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=torch.cat([start, target], 1)).logits
    wanted = logits.log_softmax(-1)[:, :-1].gather(-1, target.unsqueeze(-1)).squeeze(-1)
    engine = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    scored = engine.score_batch(
        *([words.convert_ids_to_tokens(row) for row in side] for side in (rows, target.tolist()))
    )
    assert wanted.std() > 0.5
    got = torch.tensor([result.log_probs[:6] for result in scored])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_hypotheses_equal_and_int8_comes_near(model, words, tmp_path):
    """Beam 4 without a length penalty, when both divide by nothing, and without tokens that are never written.

    The engine takes those out before the softmax, ours after it, and in a model this small they have probability.
    """
    writing.write(model, words, tmp_path)
    rows, batch = sources(60)
    search = {"num_beams": 4, "length_penalty_type": "power", "length_penalty": 0.0, "max_new_tokens": 12}
    search |= {"suppress_tokens": []}
    found = [row[: row.index(EOS)] if EOS in row else row for row in model.generate(**batch, **search)[:, 1:].tolist()]
    wanted = [" ".join(words.convert_ids_to_tokens([token for token in row if token != PAD])) for row in found]

    def translations(compute_type: str) -> list[str]:
        engine = ctranslate2.Translator(str(tmp_path), compute_type=compute_type)
        results = engine.translate_batch(
            [words.convert_ids_to_tokens(row) for row in rows],
            beam_size=4,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=12,
        )
        return [" ".join(result.hypotheses[0]) for result in results]

    assert len(set(wanted)) > 15
    assert translations("float32") == wanted
    assert sum(a == b for a, b in zip(translations("int8"), wanted, strict=True)) >= 30


def test_a_written_model_can_be_read_back(model, words, tmp_path):
    writing.write(model, words, tmp_path)
    again = reading.read(tmp_path)
    rows, batch = sources(6)
    target = random_tokens(6, 5, seed=4)
    with torch.no_grad():
        wanted, got = (m(**batch, decoder_input_ids=target).logits for m in (model, again.model))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    for name in ("positional_encoding", "sinusoid_layout", "norm_position", "embedding_sharing", "layer_norm_eps"):
        assert getattr(again.model.config, name) == getattr(model.config, name), name
    assert again.tokenizer("w3 w1").input_ids == [7, 5, EOS]


def test_what_the_engine_lacks_is_said(tmp_path):
    one_fewer = words_tokenizer(TOKENS[:-1], **SPECIAL)
    said = "\n".join(writing.write(small_model(), one_fewer, tmp_path))
    assert "GNMT's ((5 + length) / 6) ^ 0.6, which CTranslate2 does not have" in said
    assert "translate_batch(length_penalty=0.6) divides by length ^ 0.6" in said
    assert "suppress_sequences" in said
    assert "table ends at 2048" in said
    assert json.loads((tmp_path / "shared_vocabulary.json").read_text())[-1] == "<unused 22>"


@pytest.fixture(scope="module")
def transliteration(shared_data, tmp_path_factory):
    """The engine's own test model: pre-norm, OpenNMT-tf, two vocabularies, positions that only the engine computes."""
    folder = tmp_path_factory.mktemp("ct2") / "model"
    shutil.copytree(shared_data("pretrained/ct2_aren-translit"), folder)
    packed = folder / "model.bin.gz"
    packed.chmod(0o644)
    folder.chmod(0o755)
    (folder / "model.bin").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return folder


def test_the_engine_s_own_model_gives_its_hypotheses_and_scores(transliteration):
    converted = reading.read(transliteration)
    letters = [
        line for line in (transliteration / "source_vocabulary.txt").read_text(encoding="utf-8").split("\n")[3:-1]
    ]
    chooser = random.Random(0)
    inputs = [list("آتزمون"), list("آتشيسون")]
    inputs += [chooser.choices(letters, k=chooser.randint(1, 12)) for _ in range(98)]
    engine = ctranslate2.Translator(str(transliteration), compute_type="float32")
    # With its usual minimum of one token the engine's first probabilities are those without </s>.
    search = {"beam_size": 4, "length_penalty": 0, "min_decoding_length": 0, "max_decoding_length": 30}
    wanted = engine.translate_batch(inputs, **search, return_scores=True)
    assert wanted[0].hypotheses[0] == list("atzmon")  # as the engine's own test has it
    batch = converted.tokenizer([" ".join(row) for row in inputs], padding=True, return_tensors="pt")
    search = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": False, "max_new_tokens": 30}
    found = converted.model.generate(**batch, **search, return_dict_in_generate=True, output_scores=True)
    texts = converted.tokenizer.batch_decode(found.sequences, skip_special_tokens=True)
    assert texts == [" ".join(result.hypotheses[0]) for result in wanted]
    scores = torch.tensor([result.scores[0] for result in wanted])
    torch.testing.assert_close(found.sequences_scores, scores, rtol=1e-4, atol=1e-4)
    assert any("table of 1024" in note for note in converted.notes)
    assert any("sources without </s>" in note for note in converted.notes)
    assert any("source (51 tokens) and target (43)" in note for note in converted.notes)


def test_engine_positions_by_hand():
    # tensor2tensor: d_model 4 has two timescales, 1 and 10,000; the first position is 1.
    table = engine_positions(2, 4)
    wanted = [[0.841471, 0.0001, 0.540302, 1.0], [0.909297, 0.0002, -0.416147, 1.0]]
    torch.testing.assert_close(table, torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=0)


def refusal(folder) -> str:
    with pytest.raises(UserError) as refused:
        reading.read(folder)
    return str(refused.value)


def test_parts_that_ours_lacks_are_said_at_once(words, tmp_path, monkeypatch):
    def with_more(spec, *arguments):
        spec.encoder.scale_embeddings = False
        spec.decoder.start_from_zero_embedding = True
        spec.decoder.activation = type(spec.decoder.activation)(5)
        spec.decoder.layer[0].layer_scalar = torch.ones(16)
        validate(spec, *arguments)

    validate = writing.TransformerSpec.validate
    monkeypatch.setattr(writing.TransformerSpec, "validate", with_more)
    writing.write(small_model(), words, tmp_path)
    said = refusal(tmp_path)
    for line in (
        "encoder/activation = 0 and decoder/activation = 5",
        "encoder/scale_embeddings = 0: only 1 can be expressed",
        "decoder/start_from_zero_embedding = 1: only 0 can be expressed",
    ):
        assert line in said


def test_one_part_more_is_refused(words, tmp_path, monkeypatch):
    def with_more(spec, *arguments):
        spec.decoder.layer[0].layer_scalar = torch.ones(16)
        validate(spec, *arguments)

    validate = writing.TransformerSpec.validate
    monkeypatch.setattr(writing.TransformerSpec, "validate", with_more)
    writing.write(small_model(), words, tmp_path)
    assert refusal(tmp_path).split("\n")[1:] == [
        "  decoder/layer_0/layer_scalar: our model has no such part; take another model"
    ]


def test_quantised_broken_and_foreign_files_are_refused(words, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="it has no model.bin"):
        reading.read(tmp_path)
    writing.write(small_model(), words, tmp_path)
    whole = (tmp_path / "model.bin").read_bytes()
    for data, said in (
        (whole[:-100], "the file ends too early"),
        (struct.pack("<I", 9) + whole[4:], "binary version 9; versions 2 to 6 are known"),
        (whole.replace(b"TransformerSpec\0", b"WhisperSpec....\0"), "is a WhisperSpec.... of revision 7"),
    ):
        (tmp_path / "model.bin").write_bytes(data)
        assert said in refusal(tmp_path)
    optimize = writing.TransformerSpec.optimize
    monkeypatch.setattr(writing.TransformerSpec, "optimize", lambda spec: optimize(spec, quantization="int8"))
    writing.write(small_model(), words, tmp_path)
    assert "has quantised weights" in refusal(tmp_path)


def test_the_file_holds_what_was_written(words, tmp_path):
    model = small_model()
    writing.write(model, words, tmp_path)
    file = read_file(tmp_path / "model.bin")
    assert (file.kind, file.revision) == ("TransformerSpec", 7)
    wanted = model.model.encoder.embed_tokens.weight.detach().numpy()
    # Stored once: the other two names are aliases.
    for name in ("encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"):
        assert (file.variables[name] == wanted).all()
    assert (tmp_path / "model.bin").read_bytes().count(wanted.tobytes()) == 1
