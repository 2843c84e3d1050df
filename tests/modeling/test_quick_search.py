"""Our own search against transformers', which the same model runs when it is asked for more than tokens."""

import copy

import pytest
import torch
from small_models import BOS, EOS, PAD, random_tokens, small_model, taught
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer.modeling import decoding_vanilla_transformer as decoding
from vanilla_transformer.modeling import quick_search_vanilla_transformer as quick
from vanilla_transformer.modeling import search_vanilla_transformer as search
from vanilla_transformer.modeling.decoding_vanilla_transformer import DecoderSteps, DecoderWeights

VARIANTS = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "learned": {"positional_encoding": "learned", "max_source_positions": 40, "max_target_positions": 90},
    "biased": {"attention_bias": True, "output_bias": True, "activation": "gelu"},
    "widths": {"d_k": 3, "d_v": 5, "embedding_sharing": "none", "sinusoid_layout": "concatenated"},
}


@pytest.fixture(scope="module")
def model():
    return taught(small_model(seed=1, noise=0.0))


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    rows = [random_tokens(1, length, seed=length)[0].tolist() + [EOS] for length in (7, 3, 5, 4, 1, 6, 2)]
    ids = torch.tensor([row + [PAD] * (8 - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long()}


@pytest.fixture
def searches(monkeypatch) -> list[str]:
    """Names of the searches of ours that have run."""
    run: list[str] = []
    for own in (search.greedy_search, search.beam_search):

        def spy(*args, own=own):
            run.append(own.__name__)
            return own(*args)

        monkeypatch.setattr(quick, own.__name__, spy)
    return run


def both(model, batch, searches, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens by our own search and by transformers'; it is made sure that they are two."""
    before = len(searches)
    ours = model.generate(**batch, **settings)
    assert len(searches) == before + 1
    theirs = model.generate(**batch, **settings, return_dict_in_generate=True).sequences
    assert len(searches) == before + 1
    return ours, theirs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 1},
        {"num_return_sequences": 4},
        {"early_stopping": True, "num_beams": 3},
        {"early_stopping": False, "num_beams": 3},
        {"length_penalty_type": "power", "length_penalty": 1.4},
        {"length_penalty": -0.5},
        {"max_new_tokens": 3},
        {"max_new_tokens": 20, "min_new_tokens": 20},
        {"num_beams": 1, "max_length": 30, "min_length": 28},
        {"max_new_tokens_over_input": 2, "num_return_sequences": 2},
        {"num_beams": 1, "max_new_tokens_over_input": 2},
        {"suppress_tokens": [BOS, PAD, 5, 6]},
        {"eos_token_id": [EOS, 7, 9]},
    ],
    ids=str,
)
def test_the_same_tokens_as_transformers_search(model, batch, searches, settings):
    for seed in range(4):
        shaken = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in shaken.parameters():
                parameter += 0.1 * seed * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        ours, theirs = both(shaken, batch, searches, **settings)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("beams", [1, 4])
def test_every_variant_of_the_model(batch, searches, fields, beams):
    model = taught(small_model(seed=2, noise=0.0, **fields), steps=30)
    ours, theirs = both(model, batch, searches, num_beams=beams, min_new_tokens=6, max_new_tokens=24)
    assert torch.equal(ours, theirs)
    assert len({tuple(row) for row in ours.tolist()}) > 1


@pytest.mark.parametrize("beams", [1, 3])
def test_a_prompt_that_all_sentences_share_the_length_of(model, batch, searches, beams):
    prompts = torch.cat([torch.full((7, 1), BOS), random_tokens(7, 3, seed=3)], 1)
    ours, theirs = both(model, batch | {"decoder_input_ids": prompts}, searches, num_beams=beams)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[:, :4], prompts)


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("pack", [True, False])
def test_steps_are_the_models_forward_on_each_hypothesis(fields, pack):
    """Hypotheses that change places at random, and sentences that leave; the forward pass sees whole texts."""
    model, random = small_model(seed=3, **fields), torch.Generator().manual_seed(5)
    source = random_tokens(3, 6, seed=1)
    source[1, 4:] = PAD
    with torch.no_grad():
        memory = model.get_encoder()(source).last_hidden_state
        steps = DecoderSteps(DecoderWeights(model, pack), memory, source.ne(PAD), 3)
        texts = random_tokens(3, 2, seed=2).unsqueeze(1)
        first = steps.prompt(texts[:, 0])
        torch.testing.assert_close(first, model(source, decoder_input_ids=texts[:, 0]).logits[:, -1])
        for step in range(12):  # beyond the room for eight
            parents = torch.randint(texts.shape[1], (len(source), 3), generator=random)
            tokens = random_tokens(len(source), 3, seed=10 + step)
            texts = texts.gather(1, parents.unsqueeze(-1).expand(-1, -1, texts.shape[2]))
            texts = torch.cat([texts, tokens.unsqueeze(-1)], 2)
            if step == 5:
                rows = torch.tensor([2, 0])
                steps.keep(rows)
                source, texts, tokens, parents = source[rows], texts[rows], tokens[rows], parents[rows]
            logits = steps.next(tokens, parents)
            whole = model(source.repeat_interleave(3, 0), decoder_input_ids=texts.flatten(0, 1)).logits[:, -1]
            torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-5)


def test_finished_sentences_leave(model, batch, monkeypatch):
    sizes = []

    def keep(self, rows, own=DecoderSteps.keep):
        own(self, rows)
        sizes.append(self.sentences)

    monkeypatch.setattr(DecoderSteps, "keep", keep)
    for beams in (1, 4):
        sizes.clear()
        model.generate(**batch, num_beams=beams)
        assert sizes and sizes == sorted(sizes, reverse=True) and sizes[-1] < 7


@pytest.mark.parametrize("size", [37, 64 * 40, 64 * 40 + 1, 64 * 41 - 1])
def test_the_best_by_blocks_are_the_best(size):
    random = torch.Generator().manual_seed(size)
    for _ in range(5):
        scores = torch.randn(6, size, generator=random)
        values, places = search.best(scores, 8)
        expected, order = scores.sort(descending=True)
        assert torch.equal(values, expected[:, :8]) and torch.equal(places, order[:, :8])
        assert torch.equal(search.best_one(scores), order[:, 0])
        equals = torch.randint(3, (6, size), generator=random).float()  # the first of many equals
        assert torch.equal(search.best_one(equals), (equals == 2).int().argmax(1))
        assert torch.equal(search.best(equals, 8)[0], equals.sort(descending=True)[0][:, :8])


class Watched(nn.Linear):
    calls = 0

    def forward(self, x):
        Watched.calls += 1
        return super().forward(x)


def test_layers_in_place_of_the_models_are_called(model, batch, searches):
    """As quantised layers and adapters are."""
    model = copy.deepcopy(model)
    plain = model.generate(**batch)
    for layer in model.model.decoder.layers:
        for module in (layer.self_attention, layer.cross_attention, layer.feed_forward):
            for child in module.children():
                if isinstance(child, nn.Linear):
                    child.__class__ = Watched
    Watched.calls = 0
    assert torch.equal(model.generate(**batch), plain)
    assert searches == ["beam_search"] * 2 and Watched.calls > 20


def test_a_models_hooks_see_its_calls(model, batch, searches):
    model = copy.deepcopy(model)
    plain = model.generate(**batch)
    seen = []
    handle = model.model.decoder.layers[0].register_forward_hook(lambda *_: seen.append(1))
    assert torch.equal(model.generate(**batch), plain)
    assert len(searches) == 1 and seen
    handle.remove()
    model.generate(**batch, output_attentions=True, return_dict_in_generate=True)  # leaves hooks of its own
    assert torch.equal(model.generate(**batch), plain) and len(searches) == 2


def test_whoever_asks_for_more_gets_transformers_search(model, batch, searches):
    class Rule:
        def __call__(self, input_ids, scores, **_):
            return torch.zeros(len(input_ids), dtype=torch.bool)

    filled = EncoderDecoderCache(DynamicCache(), DynamicCache())
    for settings in (
        {"no_repeat_ngram_size": 2},
        {"stopping_criteria": [Rule()]},
        {"use_cache": False},
        {"cache": filled, "num_beams": 1},
        {"do_sample": True},
    ):
        model.generate(**batch, max_new_tokens=5, **settings)
    with torch.autocast("cpu", torch.bfloat16):
        model.generate(**batch, max_new_tokens=5)
    model.train().generate(**batch, max_new_tokens=5)
    model.eval()
    assert searches == [] and filled.get_seq_length() > 0


def test_weights_are_packed_once_where_the_caller_leaves_them_alone(model, batch, monkeypatch):
    packed = []

    def pack(weight, rows, own=torch.ops.mkldnn._reorder_linear_weight):
        packed.append(weight.shape)
        return own(weight, rows)

    monkeypatch.setattr(decoding.torch.ops.mkldnn, "_reorder_linear_weight", pack)
    model = copy.deepcopy(model)
    before = model.generate(**batch)
    once = len(packed)
    assert once == 2 * 7 + 1  # of two layers qkv, two outs, q, kv, two of the feed-forward; and the head
    with model.weights_unchanged(), model.weights_unchanged():
        assert all(torch.equal(model.generate(**batch), before) for _ in range(3))
    assert len(packed) == 2 * once
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    assert not torch.equal(model.generate(**batch), before)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16")
def test_bfloat16_agrees_but_for_its_rounding(model, batch, searches):
    half = copy.deepcopy(model).to(torch.bfloat16)
    for beams in (1, 4):
        ours, theirs = both(half, batch, searches, num_beams=beams)
        whole = model.generate(**batch, num_beams=beams)
        assert (ours[:, :2] == theirs[:, :2]).float().mean() > 0.8
        assert (ours[:, :2] == whole[:, :2]).float().mean() > 0.8
