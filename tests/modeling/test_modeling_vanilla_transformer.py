"""Initialisation, shared weights, resizing of the vocabulary: what the paper and tensor2tensor say of them."""

import math

import pytest
import torch
from small_models import EOS, random_tokens, small_config, small_model, taught
from torch import nn

import vanilla_transformer as vt
from vanilla_transformer.modeling.modeling_vanilla_transformer import Residual, plain_attention

SHARINGS = ["all", "decoder", "none"]


@pytest.mark.parametrize("sharing", SHARINGS)
def test_initial_weights_are_tensor2tensors(sharing):
    """Glorot uniform within its bound and filling it; embeddings N(0, 1 / d_model), also where one is the softmax."""
    torch.manual_seed(0)
    config = small_config(
        vocab_size=400,
        d_model=64,
        d_ff=96,
        d_k=24,
        d_v=8,
        attention_bias=True,
        output_bias=True,
        embedding_sharing=sharing,
    )
    model = vt.VanillaTransformerForConditionalGeneration(config)
    shared = {model.model.decoder.embed_tokens.weight, model.model.encoder.embed_tokens.weight}
    for embedding in shared:
        assert embedding.mean().item() == pytest.approx(0, abs=0.005)  # 25,600 draws: 6 standard errors
        assert embedding.std().item() == pytest.approx(64**-0.5, rel=0.03)
    glorot = 0
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and (module.bias == 0).all()
        if isinstance(module, nn.Linear):
            assert module.bias is None or (module.bias == 0).all()
            if any(module.weight is embedding for embedding in shared):
                continue
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert 0.98 * bound < module.weight.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
            glorot += 1
    # 2 encoder layers of 4 + 2 matrices, 2 decoder layers of 8 + 2, and a softmax of its own
    assert glorot == 2 * 6 + 2 * 10 + (sharing == "none")


def test_the_embeddings_enter_with_unit_variance():
    """N(0, 1 / d_model) times sqrt(d_model), before the positions are added."""
    torch.manual_seed(0)
    model = vt.VanillaTransformerForConditionalGeneration(small_config(vocab_size=400, d_model=64))
    seen = []
    model.model.encoder.dropout.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    ids = random_tokens(8, 50, vocab_size=400)
    model(input_ids=ids, decoder_input_ids=ids[:, :1])
    positions = torch.stack(
        [
            torch.tensor([f(p / 10000 ** (2 * i / 64)) for i in range(32) for f in (math.sin, math.cos)])
            for p in range(50)
        ]
    )
    assert (seen[0] - positions).std().item() == pytest.approx(1, rel=0.03)


def shares_storage(model) -> dict[str, bool]:
    source, target = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    return {
        "source is target": source.data_ptr() == target.data_ptr(),
        "softmax is target": model.lm_head.weight.data_ptr() == target.data_ptr(),
    }


@pytest.mark.parametrize("sharing", SHARINGS)
def test_shared_matrices_are_one_storage_also_after_loading(sharing, tmp_path):
    expected = {"source is target": sharing == "all", "softmax is target": sharing != "none"}
    model = small_model(embedding_sharing=sharing, output_bias=True)
    assert shares_storage(model) == expected
    model.save_pretrained(tmp_path)
    loaded = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert shares_storage(loaded) == expected
    matrices = {"all": 1, "decoder": 2, "none": 3}[sharing]
    others = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name and name != "lm_head.weight")
    assert loaded.num_parameters() == matrices * 23 * 16 + others
    for (name, ours), (other, theirs) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert name == other and torch.equal(ours, theirs)


def test_the_bare_model_shares_and_loads_too(tmp_path):
    small_model().save_pretrained(tmp_path)
    bare = vt.VanillaTransformerModel.from_pretrained(tmp_path)
    assert bare.encoder.embed_tokens.weight.data_ptr() == bare.decoder.embed_tokens.weight.data_ptr()
    whole = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    batch = {"input_ids": random_tokens(2, 4), "decoder_input_ids": random_tokens(2, 3)}
    with torch.no_grad():
        states = bare.eval()(**batch).last_hidden_state
        torch.testing.assert_close(whole.eval()(**batch).logits, states @ bare.decoder.embed_tokens.weight.T)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("output_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("size", [31, 17])
def test_resized_vocabulary_keeps_what_was_known(sharing, output_bias, size, tmp_path):
    model = small_model(embedding_sharing=sharing, output_bias=output_bias)
    kept = min(size, 23)
    source, target = random_tokens(2, 5, vocab_size=kept), random_tokens(2, 4, vocab_size=kept)
    batch = {"input_ids": source, "decoder_input_ids": target}
    with torch.no_grad():
        before = model(**batch).logits[..., :kept]
        ties = shares_storage(model)
        returned = model.resize_token_embeddings(size)
        after = model(**batch).logits
    assert returned is model.model.encoder.embed_tokens
    assert after.shape[-1] == size
    torch.testing.assert_close(after[..., :kept], before)

    assert model.config.vocab_size == model.model.config.vocab_size == size
    for embedding in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
        assert embedding.num_embeddings == size and embedding.weight.shape == (size, 16)
    assert model.lm_head.out_features == size and model.lm_head.weight.shape == (size, 16)
    assert (model.lm_head.bias.shape == (size,)) if output_bias else (model.lm_head.bias is None)
    assert shares_storage(model) == ties

    # It trains, and saves and loads as what it has become.
    loss = model.train()(input_ids=source, labels=torch.full((2, 3), size - 1)).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval().save_pretrained(tmp_path)
    loaded = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, after)
    assert shares_storage(loaded) == ties


def test_matrices_untied_by_transformers_own_switch_are_all_resized():
    config = small_config()
    config.tie_word_embeddings = False
    model = vt.VanillaTransformerForConditionalGeneration(config).eval()
    assert model.lm_head.weight is not model.model.decoder.embed_tokens.weight
    model.resize_token_embeddings(31)
    logits = model(input_ids=random_tokens(1, 3), decoder_input_ids=torch.tensor([[30]])).logits
    assert logits.shape[-1] == model.config.vocab_size == model.lm_head.out_features == 31


def test_resizing_to_a_multiple():
    model = small_model(embedding_sharing="decoder", output_bias=True)
    model.resize_token_embeddings(25, pad_to_multiple_of=8)
    assert model.config.vocab_size == model.lm_head.out_features == len(model.lm_head.bias) == 32
    assert model.model.decoder.embed_tokens.weight.shape == (32, 16)


def test_resizing_leaves_greedy_decoding_as_it_was():
    """A new token's embedding is near the mean of the old ones, so its logit near their mean: never the largest."""
    model = taught(small_model(seed=1, noise=0.0))
    source = torch.cat([random_tokens(4, 5), torch.full((4, 1), EOS)], 1)
    before = model.generate(source, num_beams=1, max_new_tokens=8)
    model.resize_token_embeddings(40)
    assert torch.equal(model.generate(source, num_beams=1, max_new_tokens=8), before)


@pytest.mark.parametrize("autocast", [True, False])
def test_autocast_on_a_cpu_keeps_the_residual_stream_in_the_type_of_the_products(autocast):
    model = small_model().train()
    types = set()
    for module in model.modules():
        if isinstance(module, Residual):
            module.register_forward_hook(lambda module, inputs, output: types.add(output.dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=random_tokens(2, 5), labels=random_tokens(2, 6)).loss
    loss.backward()
    assert types == {torch.bfloat16 if autocast else torch.float32}
    assert loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("dtype", "length", "training", "plain"),
    [
        (torch.float32, 64, True, True),
        (torch.float32, 65, True, False),  # memory grows with the length, not with its square
        (torch.float32, 5, False, False),
        (torch.bfloat16, 500, True, True),
        (torch.bfloat16, 500, False, False),
    ],
)
def test_where_training_on_a_cpu_attends_by_plain_products(dtype, length, training, plain):
    attention = small_model(attn_implementation="sdpa").model.encoder.layers[0].self_attention
    with torch.set_grad_enabled(training):
        chosen = attention._implementation(torch.zeros(1, 4, length, 4, dtype=dtype), None)
    assert (chosen is plain_attention) is plain
