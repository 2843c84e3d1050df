"""What transformers' `generate` offers beside the paper's search gives the same text, or what its name says.

Its own tests of this are not in its source distribution. Decoding as the paper does it is tested in
test_generation_vanilla_transformer.py.
"""

import copy

import pytest
import torch
from small_models import BOS, EOS, PAD, random_tokens, small_model, taught
from transformers import LogitsProcessor

GREEDY, BEAM = {"num_beams": 1}, {"num_beams": 3}
SEARCHES = [GREEDY, BEAM]


@pytest.fixture(scope="module")
def model():
    return taught(small_model(seed=4, noise=0.0))


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    rows = [random_tokens(1, length, seed=length)[0].tolist() + [EOS] for length in (6, 3, 4)]
    ids = torch.tensor([row + [PAD] * (7 - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long()}


@pytest.mark.parametrize("search", SEARCHES)
def test_the_encoder_s_output_may_be_given(model, batch, search):
    with torch.no_grad():
        encoder_outputs = model.get_encoder()(**batch)
    given = model.generate(encoder_outputs=encoder_outputs, attention_mask=batch["attention_mask"], **search)
    assert torch.equal(given, model.generate(**batch, **search))


@pytest.mark.parametrize("search", SEARCHES)
def test_embeddings_may_be_given(model, batch, search):
    embeds = model.get_input_embeddings()(batch["input_ids"])
    given = model.generate(inputs_embeds=embeds, attention_mask=batch["attention_mask"], **search)
    assert torch.equal(given, model.generate(**batch, **search))


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", ["dynamic", "static", "offloaded"])
def test_every_kind_of_cache_gives_the_same(model, batch, search, kind):
    if kind == "offloaded" and not torch.cuda.is_available():
        pytest.skip("offloads from a GPU")
    kept = model.generate(**batch, **search, max_new_tokens=8, cache_implementation=kind)
    assert torch.equal(kept, model.generate(**batch, **search, max_new_tokens=8, use_cache=False))


@pytest.mark.parametrize("way", [{"prompt_lookup_num_tokens": 2}, {"assistant_model": None}])
def test_drafts_change_no_token(model, batch, way):
    """A draft is checked against the model; here by one that is often wrong."""
    assistant = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    way = {"assistant_model": assistant} if "assistant_model" in way else way
    for row in range(len(batch["input_ids"])):  # drafts are for one sentence
        one = {name: value[row : row + 1] for name, value in batch.items()}
        drafted = model.generate(**one, num_beams=1, max_new_tokens=10, **way)
        assert torch.equal(drafted, model.generate(**one, num_beams=1, max_new_tokens=10))


@pytest.mark.parametrize("search", SEARCHES)
def test_all_that_can_be_returned_is(model, batch, search):
    rows, beams = len(batch["input_ids"]), search["num_beams"]
    out = model.generate(
        **batch,
        **search,
        max_new_tokens=5,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    assert torch.equal(out.sequences, model.generate(**batch, **search, max_new_tokens=5))
    steps = len(out.scores)
    assert steps == len(out.logits) == len(out.cross_attentions) == len(out.decoder_attentions)
    assert len(out.encoder_attentions) == len(out.cross_attentions[0]) == model.config.num_decoder_layers
    heads, sources = model.config.num_heads, batch["input_ids"].shape[1]
    for step, layers in enumerate(out.cross_attentions):
        for weights in layers:
            assert weights.shape == (rows * beams, heads, 1, sources)
            torch.testing.assert_close(weights.sum(-1), torch.ones(rows * beams, heads, 1))
            # Of the hypotheses of the second sentence none looks at its padding.
            assert weights[beams : 2 * beams, ..., 4:].abs().max() == 0
        for weights in out.decoder_attentions[step]:
            assert weights.shape == (rows * beams, heads, 1, step + 1)
    # The last sentence's own attention, computed at once from its finished text. One beam changes no row's place.
    if beams == 1:
        text = out.sequences[2:3, :-1]
        one = {name: value[2:3] for name, value in batch.items()}
        with torch.no_grad():
            whole = model(**one, decoder_input_ids=text, output_attentions=True).cross_attentions[-1]
        stepwise = torch.cat([layers[-1][2:3] for layers in out.cross_attentions], 2)
        real = int(text.ne(PAD).sum())
        torch.testing.assert_close(stepwise[:, :, :real], whole[:, :, :real])


class OnlyToken(LogitsProcessor):
    def __init__(self, token: int):
        self.token = token

    def __call__(self, input_ids, scores):
        return torch.full_like(scores, -1e9).index_fill_(1, torch.tensor([self.token]), 0.0)


@pytest.mark.parametrize("search", SEARCHES)
def test_logits_may_be_processed_and_tokens_forbidden_or_forced(model, batch, search):
    plain = model.generate(**batch, **search, max_new_tokens=6)
    five = model.generate(**batch, **search, max_new_tokens=6, logits_processor=[OnlyToken(5)])
    assert five.tolist() == [[BOS] + [5] * 6] * 3
    used = int(plain[0, 1])
    without = model.generate(**batch, **search, max_new_tokens=6, bad_words_ids=[[used]])
    assert used not in without
    allowed = [7, 8, EOS]
    restricted = model.generate(**batch, **search, max_new_tokens=6, prefix_allowed_tokens_fn=lambda *_: allowed)
    assert set(restricted[:, 1:].flatten().tolist()) <= {*allowed, PAD}
    minimal = model.generate(**batch, **search, max_new_tokens=9, min_new_tokens=9)
    assert minimal.shape[1] == 1 + 9 and not minimal.eq(EOS)[:, :-1].any()
    unrepeated = model.generate(**batch, **search, max_new_tokens=12, min_new_tokens=12, no_repeat_ngram_size=1)
    assert all(len(set(row)) == len(row) for row in unrepeated.tolist())


def test_decoding_goes_on_from_a_returned_cache(model, batch):
    whole = model.generate(**batch, num_beams=1, max_new_tokens=6, min_new_tokens=6)
    begun = model.generate(**batch, num_beams=1, max_new_tokens=3, min_new_tokens=3, return_dict_in_generate=True)
    assert torch.equal(begun.sequences, whole[:, :4])
    rest = {"max_new_tokens": 3, "min_new_tokens": 3, "num_beams": 1}
    # Only a mask tells transformers that these tokens are all there are, and not those after the cache.
    so_far = {"decoder_input_ids": begun.sequences, "decoder_attention_mask": torch.ones_like(begun.sequences)}
    assert torch.equal(model.generate(**batch, **so_far, cache=begun.cache, **rest), whole)


def test_sampled_beams_are_reproducible_and_differ_by_seed(model, batch):
    def sampled(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return model.generate(**batch, num_beams=3, do_sample=True, temperature=2.0, max_new_tokens=8).tolist()

    assert sampled(1) == sampled(1)
    assert len({str(sampled(seed)) for seed in range(5)}) > 1


def test_more_sequences_than_beams_are_refused(model, batch):
    with pytest.raises(ValueError, match="num_return_sequences"):
        model.generate(**batch, num_beams=2, num_return_sequences=3)
