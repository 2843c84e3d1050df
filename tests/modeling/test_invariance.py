"""What must not change the output: the batch around it, padding and its side, the cache, the attention code, a save."""

import math

import pytest
import torch
from small_models import EOS, PAD, random_tokens, small_model
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import masking_utils
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.integrations import flex_attention as transformers_flex

import vanilla_transformer as vt
from vanilla_transformer.modeling.modeling_vanilla_transformer import PositionLimitError, sinusoids

LEARNED = {"positional_encoding": "learned", "max_source_positions": 20, "max_target_positions": 20}
VARIANTS = {"paper": {}, "pre-norm": {"norm_position": "pre", "attention_bias": True}, "learned": LEARNED}
IMPLEMENTATIONS = ["eager", "sdpa"]
UNCOMPILED = {"_compile": False}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # float32 sums in another order


@pytest.fixture(params=VARIANTS)
def fields(request):
    return VARIANTS[request.param]


@pytest.fixture(params=IMPLEMENTATIONS)
def model(request, fields):
    return small_model(seed=1, attn_implementation=request.param, **fields)


def pad(rows: list[list[int]], fill: int = PAD, side: str = "right", extra: int = 0) -> torch.Tensor:
    length = max(map(len, rows)) + extra
    fills = [[fill] * (length - len(row)) for row in rows]
    return torch.tensor([f + row if side == "left" else row + f for row, f in zip(rows, fills, strict=True)])


SOURCES = [random_tokens(1, n, seed=n)[0].tolist() + [EOS] for n in (2, 9, 5)]
PROMPTS = [[0] + random_tokens(1, n, seed=20 + n)[0].tolist() for n in (6, 3, 1)]


@torch.no_grad()
def alone(model) -> list[torch.Tensor]:
    """Logits of each pair in a batch of its own, without a mask or a pad."""
    return [
        model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([prompt])).logits[0]
        for source, prompt in zip(SOURCES, PROMPTS, strict=True)
    ]


@pytest.mark.parametrize("source_side", ["right", "left"])
@pytest.mark.parametrize("target_side", ["right", "left"])
@pytest.mark.parametrize("masks", [True, False], ids=["masks", "no-masks"])
@torch.no_grad()
def test_neither_neighbours_nor_padding_change_the_logits(model, source_side, target_side, masks):
    source = pad(SOURCES, side=source_side, extra=3)
    target = pad(PROMPTS, side=target_side, extra=2)
    given = {"attention_mask": source.ne(PAD).long(), "decoder_attention_mask": target.ne(PAD).long()} if masks else {}
    logits = model(input_ids=source, decoder_input_ids=target, **given).logits
    for row, expected, prompt in zip(logits, alone(model), PROMPTS, strict=True):
        real = row[: len(prompt)] if target_side == "right" else row[-len(prompt) :]
        torch.testing.assert_close(real, expected, **CLOSE)


@torch.no_grad()
def test_pads_between_start_and_prompt_are_skipped(model):
    """What transformers makes of left-padded prompts without <s>: it puts <s> before the pads."""
    target = pad([prompt[1:] for prompt in PROMPTS], side="left")
    target = torch.cat([torch.zeros(3, 1, dtype=torch.long), target], 1)
    logits = model(input_ids=pad(SOURCES), decoder_input_ids=target).logits
    for row, expected in zip(logits, alone(model), strict=True):
        torch.testing.assert_close(row[-1], expected[-1], **CLOSE)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_of_labels_changes_neither_loss_nor_gradients(model, side):
    model.train()
    targets = [prompt[1:] + [EOS] for prompt in PROMPTS]
    losses, gradients = [], []
    for source_side, label_side, extra in (("right", "right", 0), (side, side, 4)):
        model.zero_grad()
        loss = model(
            input_ids=pad(SOURCES, side=source_side, extra=extra),
            labels=pad(targets, fill=-100, side=label_side, extra=extra),
        ).loss
        loss.backward()
        losses.append(loss)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(losses[0], losses[1], **CLOSE)
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def test_decoder_input_is_the_labels_shifted_right():
    model = small_model()
    labels = torch.tensor([[5, 6, 2, -100], [-100, -100, 7, 2]])
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    assert shifted[0, :3].tolist() == [0, 5, 6]  # what comes after is never seen by a token that counts
    assert shifted[1].tolist() == [PAD, PAD, 0, 7]


@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_step_by_step_with_the_cache_equals_one_pass(model, side):
    source = pad(SOURCES, side=side)
    mask = source.ne(PAD).long()
    target = random_tokens(3, 9, seed=7)
    full = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    encoded = model.model.encoder(input_ids=source, attention_mask=mask)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    # A prompt of 4, then 2 tokens at once, then one by one.
    for start, stop in ((0, 4), (4, 6), (6, 7), (7, 8), (8, 9)):
        step = model(
            encoder_outputs=encoded,
            attention_mask=mask,
            decoder_input_ids=target[:, start:stop],
            cache=cache,
            use_cache=True,
        )
        cache = step.cache
        torch.testing.assert_close(step.logits, full[:, start:stop], **CLOSE)


@torch.no_grad()
def test_the_cache_s_old_name_is_understood_with_a_warning(model):
    source, target = random_tokens(2, 5), random_tokens(2, 6, seed=1)
    whole = model(input_ids=source, decoder_input_ids=target).logits[:, 4:]
    for module in (model, model.model):
        begun = module(input_ids=source, decoder_input_ids=target[:, :4], use_cache=True)
        with pytest.warns(FutureWarning, match="past_key_values"):
            rest = module(input_ids=source, decoder_input_ids=target[:, 4:], past_key_values=begun.cache)
        logits = rest.logits if module is model else model.lm_head(rest.last_hidden_state)
        torch.testing.assert_close(logits, whole, **CLOSE)


@torch.no_grad()
def test_cache_continues_left_padded_prompts(model):
    target = pad(PROMPTS, side="left")
    mask = target.ne(PAD).long()
    new = random_tokens(3, 1, seed=8)
    first = model(input_ids=pad(SOURCES), decoder_input_ids=target, use_cache=True)
    step = model(
        input_ids=pad(SOURCES),
        decoder_input_ids=new,
        decoder_attention_mask=torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], 1),
        cache=first.cache,
        use_cache=True,
    )
    for b, prompt in enumerate(PROMPTS):
        expected = model(
            input_ids=torch.tensor([SOURCES[b]]), decoder_input_ids=torch.tensor([prompt + new[b].tolist()])
        ).logits[0, -1]
        torch.testing.assert_close(step.logits[b, -1], expected, **CLOSE)


def _implementations_agree(names, fields):
    source, target = pad(SOURCES, side="left"), pad(PROMPTS, side="right")
    results = []
    for name in names:
        model = small_model(seed=1, attn_implementation=name, **fields).double()
        logits = model(input_ids=source, decoder_input_ids=target).logits
        real = logits[target.ne(PAD)]
        real.square().sum().backward()
        results.append((real.detach(), [parameter.grad for parameter in model.parameters()]))
    for logits, gradients in results[1:]:
        torch.testing.assert_close(logits, results[0][0], rtol=1e-10, atol=1e-10)
        for ours, theirs in zip(gradients, results[0][1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_eager_and_sdpa_agree(fields):
    _implementations_agree(["eager", "sdpa"], fields)


def test_eager_and_sdpa_agree_where_d_k_is_not_d_v():
    _implementations_agree(["eager", "sdpa"], {"d_k": 3, "d_v": 5})


@pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:.*_compile flag", "ignore:.*script_method")
@torch.no_grad()
def test_eager_and_flex_agree(fields, monkeypatch):
    """Flex attention as torch defines it, without the minutes of C++ that it takes to compile it for a CPU."""
    monkeypatch.setattr(transformers_flex.WrappedFlexAttention, "__call__", lambda self: flex_attention)
    monkeypatch.setattr(masking_utils, "create_block_mask", lambda **kwargs: create_block_mask(**kwargs | UNCOMPILED))
    source, target = pad(SOURCES, side="left"), pad(PROMPTS, side="right")
    results = []
    for name in ("eager", "flex_attention"):
        model = small_model(seed=1, attn_implementation=name, d_model=64, **fields)
        results.append(model(input_ids=source, decoder_input_ids=target).logits[target.ne(PAD)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_saving_and_loading_changes_no_bit(fields, dtype, tmp_path):
    model = small_model(seed=1, **fields).to(dtype)
    batch = {"input_ids": pad(SOURCES), "decoder_input_ids": pad(PROMPTS)}
    before = model(**batch).logits
    model.save_pretrained(tmp_path)
    loaded = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype).eval()
    assert torch.equal(loaded(**batch).logits, before)
    # Nothing of the sinusoids stays behind in a type that is too small for them.
    fresh = small_model(seed=1, **fields).to(dtype).float()
    assert torch.equal(loaded.float()(**batch).logits, fresh(**batch).logits)


@pytest.mark.parametrize("training", ["float32", "bfloat16-autocast", "bfloat16"])
def test_rows_of_padding_leave_everything_else_and_all_gradients_finite(model, training):
    """A split over processes can give a sentence without tokens; nan in one row would poison the update."""
    model.train()
    dtype = torch.bfloat16 if training == "bfloat16" else torch.float32
    model.to(dtype)
    sources = pad([*SOURCES, []])
    labels = pad([prompt[1:] + [EOS] for prompt in PROMPTS] + [[]], fill=-100)
    mask = sources.ne(PAD).long()
    results = []
    for rows in (slice(0, 3), slice(0, 4)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=training == "bfloat16-autocast"):
            batch = {"input_ids": sources[rows], "attention_mask": mask[rows], "labels": labels[rows]}
            outputs = model(**batch, compute_logits=True)
        outputs.loss.backward()
        assert outputs.logits.isfinite().all()
        results.append((outputs.logits[:3].detach(), [parameter.grad for parameter in model.parameters()]))
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if training == "float32" else {"rtol": 5e-2, "atol": 5e-2}
    torch.testing.assert_close(results[1][0], results[0][0], **tolerance)
    for with_empty, without in zip(results[1][1], results[0][1], strict=True):
        assert with_empty.isfinite().all()
        assert (with_empty - without).abs().max() <= tolerance["rtol"] * without.abs().max() + 1e-5


@torch.no_grad()
def test_a_target_row_of_padding_stays_finite(model):
    target = pad([*PROMPTS[:2], []])
    mask = target.ne(PAD).long()
    logits = model(input_ids=pad(SOURCES), decoder_input_ids=target, decoder_attention_mask=mask).logits
    assert logits.isfinite().all()
    for row, expected in zip(logits, alone(model)[:2], strict=False):
        torch.testing.assert_close(row[: len(expected)], expected, **CLOSE)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_sinusoids_far_out_are_exact(layout):
    """float32 angles would be off by 1e-3 here; the table is the formula to the last bits of float64."""
    d = 512
    for position in (0, 1, 10_000, 123_456):
        row = sinusoids(torch.tensor([position]), d, layout)[0]
        for i in (0, 1, 7, 100, 255):
            angle = position / 10000 ** (2 * i / d)
            sine, cosine = (i, 256 + i) if layout == "concatenated" else (2 * i, 2 * i + 1)
            assert row[sine].item() == pytest.approx(math.sin(angle), abs=1e-9)
            assert row[cosine].item() == pytest.approx(math.cos(angle), abs=1e-9)


@torch.no_grad()
def test_sinusoidal_positions_have_no_limit():
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    logits = model(input_ids=random_tokens(1, 3000), decoder_input_ids=random_tokens(1, 2000)).logits
    assert logits.shape == (1, 2000, 23) and logits.isfinite().all()


@torch.no_grad()
def test_learned_positions_end_with_a_named_error():
    model = small_model(positional_encoding="learned", max_source_positions=6, max_target_positions=4)
    model(input_ids=random_tokens(1, 6), decoder_input_ids=random_tokens(1, 4))
    with pytest.raises(PositionLimitError, match="max_source_positions = 6: the input has 7 positions"):
        model(input_ids=random_tokens(1, 7), decoder_input_ids=random_tokens(1, 4))
    with pytest.raises(PositionLimitError, match="max_target_positions = 4: the input has 5 positions"):
        model(input_ids=random_tokens(1, 6), decoder_input_ids=random_tokens(1, 5))
    # Padding takes no position.
    padded = pad([random_tokens(1, 6)[0].tolist()], extra=5)
    model(input_ids=padded, decoder_input_ids=random_tokens(1, 4))


@torch.no_grad()
def test_embeddings_given_equal_ids_given(model):
    source, target = pad(SOURCES), pad(PROMPTS)
    masks = {"attention_mask": source.ne(PAD).long(), "decoder_attention_mask": target.ne(PAD).long()}
    expected = model(input_ids=source, decoder_input_ids=target, **masks).logits
    embedded = {
        "inputs_embeds": model.get_input_embeddings()(source),
        "decoder_inputs_embeds": model.model.decoder.embed_tokens(target),
    }
    torch.testing.assert_close(model(**embedded, **masks).logits, expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(input_ids=source, **embedded, **masks)


@torch.no_grad()
def test_attention_weights_are_distributions_that_see_neither_future_nor_padding():
    model = small_model(attn_implementation="eager", num_encoder_layers=1, num_decoder_layers=3)
    source, target = pad(SOURCES), pad(PROMPTS)
    outputs = model(
        input_ids=source,
        decoder_input_ids=target,
        decoder_attention_mask=target.ne(PAD).long(),
        output_attentions=True,
        output_hidden_states=True,
    )
    B, S, T, H = 3, source.shape[1], target.shape[1], 4
    assert [a.shape for a in outputs.encoder_attentions] == [(B, H, S, S)]
    assert [a.shape for a in outputs.decoder_attentions] == [(B, H, T, T)] * 3
    assert [a.shape for a in outputs.cross_attentions] == [(B, H, T, S)] * 3
    assert len(outputs.encoder_hidden_states) == 1 + 1 and len(outputs.decoder_hidden_states) == 3 + 1
    for weights in (*outputs.encoder_attentions, *outputs.decoder_attentions, *outputs.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    for weights in (*outputs.encoder_attentions, *outputs.cross_attentions):
        assert (weights.transpose(1, 3)[source.eq(PAD)] == 0).all()
    for weights in outputs.decoder_attentions:
        assert (weights.triu(1) == 0).all()
        real_queries = weights.transpose(1, 2)[target.ne(PAD)]  # (real, H, T)
        own_pads = target.eq(PAD).unsqueeze(1).expand(-1, T, -1)[target.ne(PAD)]
        assert (real_queries.transpose(1, 2)[own_pads] == 0).all()


def test_attention_weights_asked_of_the_default_implementation_arrive():
    model = small_model()
    outputs = model(input_ids=pad(SOURCES), decoder_input_ids=pad(PROMPTS), output_attentions=True)
    assert len(outputs.cross_attentions) == 2 and outputs.cross_attentions[0].shape == (3, 4, 7, 10)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")  # its name up to transformers 5
def test_gradient_checkpointing_changes_no_gradient(fields):
    batch = {"input_ids": pad(SOURCES), "labels": pad([p[1:] + [EOS] for p in PROMPTS], fill=-100)}
    gradients = []
    for checkpointing in (False, True):
        model = small_model(seed=1, dropout=0.3, **fields).train()
        calls = []
        model.model.encoder.layers[0].feed_forward.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(3)  # the same dropout in both, and again in the recomputed forward pass
        model(**batch).loss.backward()
        assert len(calls) == (2 if checkpointing else 1)  # forward again in the backward pass
        gradients.append([parameter.grad for parameter in model.parameters()])
    for without, with_checkpointing in zip(*gradients, strict=True):
        torch.testing.assert_close(with_checkpointing, without, rtol=1e-5, atol=1e-7)


@pytest.mark.integration  # many seconds of tracing
@torch.no_grad()
def test_compiled_forward_equals_eager():
    """Traced as for every backend, run without one: what depends on torch's compiler alone is left out."""
    model = small_model()
    compiled = torch.compile(model, backend="eager")
    for rows in (3, 2):
        batch = {"input_ids": pad(SOURCES)[:rows], "decoder_input_ids": pad(PROMPTS)[:rows]}
        torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, **CLOSE)


@torch.no_grad()
def test_masks_do_not_grow_with_the_queries(monkeypatch):
    model, seen = small_model(attn_implementation="sdpa"), []
    fused = torch.nn.functional.scaled_dot_product_attention

    def noting(query, key, value, attn_mask=None, **options):
        seen.append(None if attn_mask is None else tuple(attn_mask.shape))
        return fused(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    source = pad(SOURCES)
    model(input_ids=source, decoder_input_ids=random_tokens(len(SOURCES), 7))
    layers = model.config.num_encoder_layers
    pads = (len(SOURCES), 1, 1, source.shape[1])
    assert seen == [pads] * layers + [None, pads] * model.config.num_decoder_layers
