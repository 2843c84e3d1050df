import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.modeling.decoding_vanilla_transformer import DecoderWeights
from vanilla_transformer.modeling.modeling_vanilla_transformer import PositionLimitError
from vanilla_transformer.training import translation
from vanilla_transformer.training.evaluation import evaluate_model
from vanilla_transformer.training.translation import (
    decoding_settings,
    score_pairs,
    translate,
    translate_nbest,
    translate_nbest_stream,
    translate_sharded,
    translate_stream,
    weights_unchanged,
)

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
WORDS = SPECIAL + [f"w{i}" for i in range(16)]
SENTENCES = ["w1 w2 w3 w4 w5 w6", "w7", "", "w8 w9", "   ", "w1", "w3 w2 w1 w0", "w10 w11 w12 w13 w14 w15 w0 w1 w2"]


@pytest.fixture(scope="module")
def tokenizer():
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


def small_model(**fields):
    """A random model that ends some sentences early and runs others into the cap."""
    torch.manual_seed(5)
    settings = {"d_model": 16, "d_ff": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
    config = VanillaTransformerConfig(vocab_size=len(WORDS), output_bias=True, **settings | fields)
    model = VanillaTransformerForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # far from uniform, so that beams differ
        model.lm_head.bias[2] = 2.0
    model.generation_config.max_new_tokens_over_input = 6
    return model


@pytest.fixture(scope="module")
def model():
    return small_model()


def one_by_one(model, tokenizer, sentence, **options):
    ids = tokenizer(sentence, return_tensors="pt")
    return model.generate(**ids, return_dict_in_generate=True, output_scores=True, **options)


def text(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("batch_tokens", [1, 16, 4096])
def test_each_line_is_what_it_is_alone(model, tokenizer, beams, batch_tokens):
    lines = translate(model, tokenizer, SENTENCES, num_beams=beams, batch_tokens=batch_tokens)
    assert len(lines) == len(SENTENCES)
    for sentence, line in zip(SENTENCES, lines, strict=True):
        if sentence.strip():
            assert line == text(tokenizer, one_by_one(model, tokenizer, sentence, num_beams=beams).sequences[0])
        else:
            assert line == ""
    assert len(set(lines)) > 3  # else equality proves nothing


def test_blank_lines_never_reach_the_model(tokenizer):
    def refuse(*_, **__):
        raise AssertionError("called")

    idle = SimpleNamespace(
        generation_config=small_model().generation_config, modules=lambda: [], eval=lambda: None, generate=refuse
    )
    idle.config = small_model().config
    finished = []
    assert translate(idle, tokenizer, ["", " \t"], on_progress=finished.append) == ["", ""]
    assert finished == [2]
    assert translate(idle, tokenizer, []) == []


@pytest.mark.parametrize("batch_tokens", [8, 4096])
def test_nbest_scores_are_those_of_the_search(model, tokenizer, batch_tokens):
    best = translate_nbest(model, tokenizer, SENTENCES, 3, num_beams=4, batch_tokens=batch_tokens)
    assert [candidates[0][0] for candidates in best] == translate(model, tokenizer, SENTENCES)
    for sentence, candidates in zip(SENTENCES, best, strict=True):
        if not sentence.strip():
            assert candidates == [("", 0.0)]
            continue
        output = one_by_one(model, tokenizer, sentence, num_return_sequences=3)
        assert [candidate for candidate, _ in candidates] == [text(tokenizer, ids) for ids in output.sequences]
        assert [score for _, score in candidates] == pytest.approx(output.sequences_scores.tolist(), rel=1e-5)


def test_other_length_penalties(model, tokenizer):
    for penalty, kind in ((0.0, "gnmt"), (2.0, "gnmt"), (1.0, "power")):
        model.generation_config.length_penalty_type = kind
        try:
            best = translate_nbest(model, tokenizer, SENTENCES[:1], 2, length_penalty=penalty)[0]
            output = one_by_one(model, tokenizer, SENTENCES[0], num_return_sequences=2, length_penalty=penalty)
        finally:
            model.generation_config.length_penalty_type = "gnmt"
        assert [score for _, score in best] == pytest.approx(output.sequences_scores.tolist(), rel=1e-5)


def test_greedy_score_is_gnmts_formula(model, tokenizer):
    [(line, score)] = translate_nbest(model, tokenizer, SENTENCES[:1], 1, num_beams=1)[0]
    output = one_by_one(model, tokenizer, SENTENCES[0], num_beams=1, output_logits=True)
    tokens = output.sequences[0, 1:]
    steps = zip(output.logits, tokens, strict=True)
    log_p = sum(torch.log_softmax(step[0], -1)[token].item() for step, token in steps)
    assert line == text(tokenizer, tokens)
    assert score == pytest.approx(log_p / ((5 + len(tokens)) / 6) ** 0.6, abs=1e-4)


def test_more_candidates_than_beams_is_a_usage_error(model, tokenizer):
    with pytest.raises(UsageError, match="num_beams = 4"):
        translate_nbest(model, tokenizer, ["w1"], 5)


def test_a_prefix_is_kept_and_continued(model, tokenizer):
    prefixes = ["w5 w6", "", "w5", "w4", "w4", "", "w9 w9", "w2"]
    best = translate_nbest(model, tokenizer, SENTENCES, 2, prefix=prefixes)
    for sentence, prefix, candidates in zip(SENTENCES, prefixes, best, strict=True):
        if not sentence.strip():
            continue
        start = torch.tensor([[0, *tokenizer(prefix, add_special_tokens=False)["input_ids"]]])
        output = one_by_one(model, tokenizer, sentence, decoder_input_ids=start, num_return_sequences=2)
        assert [candidate for candidate, _ in candidates] == [text(tokenizer, ids) for ids in output.sequences]
        assert all(candidate.startswith(prefix) for candidate, _ in candidates)
        assert [score for _, score in candidates] == pytest.approx(output.sequences_scores.tolist(), rel=1e-5)
    assert translate(model, tokenizer, ["w1"], prefix="w5 w6")[0].startswith("w5 w6")
    with pytest.raises(UsageError, match="2 prefixes for 1 sentences"):
        translate(model, tokenizer, ["w1"], prefix=["w5", "w6"])


def test_scores_of_pairs_equal_a_plain_loop(model, tokenizer):
    sources = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11", "", "w1"]
    targets = ["w3 w2", "w9 w8 w7 w6 w5 w4 w3 w2", "", "w1", "w1"]
    expected, lengths = [], []
    for source, target in zip(sources, targets, strict=True):
        source_ids, target_ids = tokenizer(source)["input_ids"], tokenizer(target)["input_ids"]
        assert target_ids[-1] == 2
        log_p = 0.0
        for i, token in enumerate(target_ids):  # one step at a time, nothing padded
            decoder_ids = torch.tensor([[0, *target_ids[:i]]])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([source_ids]), decoder_input_ids=decoder_ids).logits
            log_p += torch.log_softmax(logits[0, -1].double(), -1)[token].item()
        expected.append(log_p)
        lengths.append(len(target_ids))
    for batch_tokens in (1, 10, 4096):
        scores = score_pairs(model, tokenizer, sources, targets, batch_tokens=batch_tokens)
        assert scores == pytest.approx(expected, abs=1e-4)
    means = [log_p / length for log_p, length in zip(expected, lengths, strict=True)]
    assert score_pairs(model, tokenizer, sources, targets, per_token=True) == pytest.approx(means, abs=1e-4)
    assert score_pairs(model, tokenizer, [], []) == []
    with pytest.raises(UserError, match="1 sources but 2 targets"):
        score_pairs(model, tokenizer, ["w1"], ["w1", "w2"])


def test_a_stream_is_answered_in_order_and_piecewise(model, tokenizer):
    arrives = threading.Event()

    def lines():
        yield from SENTENCES[:3]
        assert arrives.wait(60)
        yield from SENTENCES[3:]

    answers = translate_stream(model, tokenizer, lines(), chunk_lines=3)
    first = [next(answers) for _ in range(3)]  # while nobody has written the fourth line
    arrives.set()
    assert [*first, *answers] == translate(model, tokenizer, SENTENCES)


def test_a_stream_is_read_and_tokenised_while_it_is_decoded(model, tokenizer, monkeypatch):
    tokenised, generate, encode = threading.Event(), type(model).generate, translation._encode

    def noted(model, tokenizer, sentences, *rest):
        encoded = encode(model, tokenizer, sentences, *rest)
        if sentences == SENTENCES[3:6]:
            tokenised.set()
        return encoded

    def decoded(*arguments, **options):
        assert tokenised.wait(60)  # of the second three lines, in the first batch of the first three
        return generate(*arguments, **options)

    monkeypatch.setattr(translation, "_encode", noted)
    monkeypatch.setattr(type(model), "generate", decoded)
    assert len(list(translate_stream(model, tokenizer, SENTENCES, chunk_lines=3))) == len(SENTENCES)


def test_a_stream_of_best_translations_tells_their_lines(model, tokenizer):
    wanted = translate_nbest(model, tokenizer, SENTENCES, 2, num_beams=3)
    streamed = translate_nbest_stream(model, tokenizer, SENTENCES, 2, num_beams=3, chunk_lines=3)
    lines, candidates = zip(*streamed, strict=True)
    assert list(lines) == SENTENCES
    texts = [[text for text, _ in translations] for translations in candidates]
    assert texts == [[text for text, _ in translations] for translations in wanted]
    with pytest.raises(UsageError, match="4 translations of each sentence need n from 1 to num_beams = 3"):
        next(translate_nbest_stream(model, tokenizer, SENTENCES, 4, num_beams=3))


def test_weights_are_packed_once_for_all_batches(model, tokenizer, monkeypatch):
    made = []

    def make(self, *arguments, own=DecoderWeights.__init__, **options):
        made.append(self)
        own(self, *arguments, **options)

    monkeypatch.setattr(DecoderWeights, "__init__", make)
    wanted = translate(model, tokenizer, SENTENCES, batch_tokens=8)
    assert len(made) == 1
    assert translate(model, tokenizer, SENTENCES) == wanted
    assert len(made) == 2  # the weights may have changed in between
    with weights_unchanged(model):
        assert list(translate_stream(model, tokenizer, SENTENCES, chunk_lines=2)) == wanted
    assert len(made) == 3
    with weights_unchanged(torch.nn.Linear(1, 1)):  # a model that promises nothing
        pass


def test_training_goes_on_as_before():
    model = small_model().train()
    model.model.encoder.eval()  # a part that its user keeps frozen
    modes = {name: module.training for name, module in model.named_modules()}
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")
    before = translate(model, tokenizer, ["w1"])
    assert {name: module.training for name, module in model.named_modules()} == modes
    ids = torch.tensor([[4, 5, 2]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert translate(model, tokenizer, ["w1"]) == before  # no dropout


def test_line_breaks_in_translations_become_spaces(model, tokenizer, monkeypatch):
    monkeypatch.setattr(
        type(tokenizer), "batch_decode", lambda self, sequences, **_: [f"a\nb{i}\r\n c" for i in range(len(sequences))]
    )
    assert sorted(translate(model, tokenizer, ["w1", "", "w2"])) == ["", "a b0 c", "a b1 c"]


def test_a_sentence_past_learned_positions_is_named(tokenizer):
    model = small_model(positional_encoding="learned", max_source_positions=4, max_target_positions=64)
    assert len(translate(model, tokenizer, ["w1 w2 w3"])) == 1
    with pytest.raises(PositionLimitError, match="Sentence 3 has 5 tokens.*max_source_positions = 4") as raised:
        translate(model, tokenizer, ["w1", "", "w1 w2 w3 w4"])
    assert isinstance(raised.value, UserError)
    assert len(score_pairs(model, tokenizer, ["w1 w2 w3"], ["w1 " * 63])) == 1
    with pytest.raises(PositionLimitError, match="Sentence 2 has 65 tokens.*max_target_positions = 64"):
        score_pairs(model, tokenizer, ["w1", "w1"], ["w1", "w1 " * 64])


def test_a_line_of_a_stream_is_named_by_its_number_in_the_stream(model, tokenizer, monkeypatch):
    monkeypatch.setattr(translation, "MAX_SENTENCE_TOKENS", 4)
    lines = ["w1", "", "w2", "w3", "w1 w2 w3 w4", "w5"]
    answered = translate_stream(model, tokenizer, lines, chunk_lines=2, num_beams=1)
    with pytest.raises(UserError, match="Sentence 5 has 5 tokens; no more than 4 are translated at once"):
        for _ in range(len(lines)):
            next(answered)
    with pytest.raises(UserError, match="Sentence 7 has 5 tokens"):
        translate_nbest(model, tokenizer, lines[4:], 1, numbers=[7, 8], num_beams=1)


def test_a_batch_that_the_memory_does_not_hold_says_what_to_lower(model, tokenizer, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(type(model), "generate", full)
    with pytest.raises(UserError, match="Out of memory on 2 sentences of up to 3 tokens.*batch_tokens = 50 or the num"):
        translate(model, tokenizer, ["w1 w2", "w3"], batch_tokens=50)
    monkeypatch.setattr(translation, "_log_probabilities", full)
    with pytest.raises(UserError, match="Out of memory on 1 sentences of up to 3 tokens.*batch_tokens = 1 or"):
        score_pairs(model, tokenizer, ["w1 w2"], ["w3"], batch_tokens=1)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2)), max_size=60), batch_tokens=st.integers(1, 200)
)
def test_batches_hold_every_sentence_once_within_the_budget(lengths, batch_tokens):
    sizes, groups = [size for size, _ in lengths], [group for _, group in lengths]
    batches = translation._batches(sizes, groups, batch_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= batch_tokens
        assert len({groups[i] for i in batch}) == 1


def test_settings_come_from_the_model_unless_given(model):
    assert decoding_settings(model) == {
        "num_beams": 4,
        "length_penalty": 0.6,
        "length_penalty_type": "gnmt",
        "max_new_tokens_over_input": 6,
        "batch_tokens": 4096,
    }
    assert decoding_settings(model, num_beams=1)["num_beams"] == 1
    with pytest.raises(UsageError, match="num_beams = 0"):
        decoding_settings(model, num_beams=0)
    with pytest.raises(UsageError, match="length_penalty = inf"):
        decoding_settings(model, length_penalty=float("inf"))


def test_a_saved_folder_is_evaluated(tmp_path, tokenizer):
    model = small_model(target_lang="zh", source_lang="en")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    result = evaluate_model(
        tmp_path / "model", SENTENCES, SENTENCES, output_dir=tmp_path / "results", device="cpu", num_beams=2
    )
    written = (tmp_path / "results" / "test.hypotheses.txt").read_text(encoding="utf-8")
    assert written == "".join(line + "\n" for line in translate(model, tokenizer, SENTENCES, num_beams=2))
    assert json.loads((tmp_path / "results" / "test.json").read_text(encoding="utf-8")) == result
    assert (result["source_lang"], result["target_lang"]) == ("en", "zh")
    assert "|tok:zh|" in result["scores"]["bleu"]["signature"]
    assert result["decoding"]["num_beams"] == 2 and result["decoding"]["length_penalty"] == 0.6
    assert result["sentences"] == len(SENTENCES) and result["empty_hypotheses"] >= 2


def test_what_is_wrong_is_said_before_the_model_is_loaded(tmp_path):
    with pytest.raises(UserError, match="2 source lines but 1 references"):
        evaluate_model(tmp_path / "absent", ["a", "b"], ["a"])
    with pytest.raises(UserError, match="absent: no such model folder"):
        evaluate_model(tmp_path / "absent", ["a"], ["a"])


SHARDED = """
import json, sys, torch
from accelerate import PartialState
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
import vanilla_transformer
from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.translation import translate_sharded
folder, out, *sentences = sys.argv[1:]
state = PartialState(cpu=True)
assert state.num_processes == 2
model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
lines = translate_sharded(model, tokenizer, sentences)
few = translate_sharded(model, tokenizer, sentences[:1])
if state.process_index == 1:
    model.generate = None
try:
    translate_sharded(model, tokenizer, sentences)
    failure = None
except Exception as error:
    failure = f"{type(error).__name__}: {error}"
json.dump([lines, few, failure], open(f"{out}.{state.process_index}", "w"))
"""


@pytest.mark.integration
def test_two_processes_give_the_lines_of_one(tmp_path, model, tokenizer):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "sharded.py").write_text(SHARDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(tmp_path / "sharded.py"), str(tmp_path / "model"), str(tmp_path / "out"), *SENTENCES]
    subprocess.run(command, check=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    expected = translate(model, tokenizer, SENTENCES)
    first, second = (json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(2))
    assert first[:2] == second[:2] == [expected, expected[:1]]
    assert "UserError" in first[2] and "process 1" in first[2]
    assert "TypeError" in second[2]


def test_one_process_needs_no_gathering(model, tokenizer):
    assert translate_sharded(model, tokenizer, SENTENCES) == translate(model, tokenizer, SENTENCES)
