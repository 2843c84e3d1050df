"""The recurrent models against their papers' equations, written here with plain products; and what must not matter."""

import copy
import math

import pytest
import torch
from small_models import EOS, PAD, random_tokens, taught
from transformers import AutoModelForSeq2SeqLM

import vanilla_transformer as vt

SYSTEMS = {
    "rnn": {"cell": "rnn", "attention": "none"},
    "lstm": {"cell": "lstm", "attention": "none"},
    "gru": {"cell": "gru", "attention": "none"},
    "reversed": {"cell": "lstm", "attention": "none", "bidirectional": False, "reverse_source": True},
    "lstm-additive": {"cell": "lstm", "attention": "additive"},
    "gru-multiplicative": {"cell": "gru", "attention": "multiplicative"},
    "lstm-fed": {"cell": "lstm", "attention": "multiplicative", "input_feeding": True},
    "rnn-fed": {"cell": "rnn", "attention": "additive", "input_feeding": True, "bidirectional": False},
}
SOURCES = [random_tokens(1, n, seed=n)[0].tolist() + [EOS] for n in (2, 9, 5)]
PROMPTS = [[0] + random_tokens(1, n, seed=20 + n)[0].tolist() for n in (6, 3, 1)]


def recurrent_model(system: str, seed: int = 0, **fields) -> vt.RecurrentSeq2SeqForConditionalGeneration:
    torch.manual_seed(seed)
    small = {"vocab_size": 23, "d_model": 16, "dropout": 0.0} | SYSTEMS[system] | fields
    model = vt.RecurrentSeq2SeqForConditionalGeneration(vt.RecurrentSeq2SeqConfig(**small))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(params=SYSTEMS)
def model(request):
    return recurrent_model(request.param)


def step(kind: str, w: dict[str, torch.Tensor], suffix: str, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor):
    """One step of one layer for one sentence: x (I,), h and c (D,) -> h, c. Gates in torch's order."""
    gates_x = w[f"weight_ih_{suffix}"] @ x + w[f"bias_ih_{suffix}"]
    gates_h = w[f"weight_hh_{suffix}"] @ h + w[f"bias_hh_{suffix}"]
    if kind == "rnn":  # Elman: tanh(W x + U h + b)
        return torch.tanh(gates_x + gates_h), c
    if kind == "lstm":  # input, forget, candidate, output
        i, f, g, o = (gates_x + gates_h).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    r_x, z_x, n_x = gates_x.chunk(3)  # reset, update, candidate
    r_h, z_h, n_h = gates_h.chunk(3)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + r * n_h) + z * h, c


def by_hand(model, source: list[int], prompt: list[int]) -> torch.Tensor:
    """Logits (T, N) of one sentence pair, token by token, from the weights by name."""
    config, w = model.config, dict(model.named_parameters(remove_duplicate=False))
    part = {
        side: {
            name.rpartition(".")[2]: value for name, value in w.items() if name.startswith(f"{side}.recurrence.rnn.")
        }
        for side in ("encoder", "decoder")
    }
    size = config.d_model // 2 if config.bidirectional else config.d_model
    xs = [w["encoder.embed_tokens.weight"][token] for token in source]
    if config.reverse_source:
        xs.reverse()
    first_h, first_c = [], []
    for layer in range(config.num_encoder_layers):
        directions = []
        for suffix, order in ((f"l{layer}", 1), (f"l{layer}_reverse", -1))[: 2 if config.bidirectional else 1]:
            h = c = xs[0].new_zeros(size)
            out = []
            for x in xs[::order]:
                h, c = step(config.cell, part["encoder"], suffix, x, h, c)
                out.append(h)
            directions.append((out[::order], h, c))
        xs = [torch.cat(both) for both in zip(*(out for out, _, _ in directions), strict=True)]
        first_h.append(torch.cat([h for _, h, _ in directions]))
        first_c.append(torch.cat([c for _, _, c in directions]))
    memory = torch.stack(xs[::-1] if config.reverse_source else xs)

    hs, cs, fed, logits = first_h, first_c, xs[0].new_zeros(config.d_model), []
    for token in prompt:
        x = w["decoder.embed_tokens.weight"][token]
        if config.input_feeding:
            x = torch.cat([x, fed])
        for layer in range(config.num_decoder_layers):
            hs[layer], cs[layer] = step(config.cell, part["decoder"], f"l{layer}", x, hs[layer], cs[layer])
            x = hs[layer]
        if config.attention != "none":
            keys = memory @ w["decoder.attention.key.weight"].T
            if config.attention == "additive":
                hidden = torch.tanh(w["decoder.attention.query.weight"] @ x + keys)
                scores = hidden @ w["decoder.attention.score.weight"][0]
            else:
                scores = keys @ x
            x = torch.cat([torch.softmax(scores, 0) @ memory, x])
        fed = torch.tanh(w["decoder.output.weight"] @ x)
        logits.append(w["lm_head.weight"] @ fed)
    return torch.stack(logits)


def test_logits_and_gradients_are_those_of_the_equations(model):
    model = model.double()
    twin = copy.deepcopy(model)
    for source, prompt in zip(SOURCES, PROMPTS, strict=True):
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([prompt])).logits[0]
        expected = by_hand(twin, source, prompt)
        torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
        logits.square().sum().backward()
        expected.square().sum().backward()
    gradients = {name: value.grad for name, value in twin.named_parameters()}
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.grad, gradients[name], rtol=1e-8, atol=1e-9)


def pad(rows: list[list[int]], side: str, extra: int) -> torch.Tensor:
    length = max(map(len, rows)) + extra
    fills = [[PAD] * (length - len(row)) for row in rows]
    return torch.tensor([f + row if side == "left" else row + f for row, f in zip(rows, fills, strict=True)])


@pytest.mark.parametrize("source_side", ["right", "left"])
@pytest.mark.parametrize("target_side", ["right", "left"])
@torch.no_grad()
def test_neither_neighbours_nor_padding_change_the_logits(model, source_side, target_side):
    source, target = pad(SOURCES, source_side, 3), pad(PROMPTS, target_side, 2)
    together = model(input_ids=source, decoder_input_ids=target).logits
    for row, (tokens, prompt) in enumerate(zip(SOURCES, PROMPTS, strict=True)):
        alone = model(input_ids=torch.tensor([tokens]), decoder_input_ids=torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(together[row][target[row].ne(PAD)], alone, rtol=1e-4, atol=1e-5)


def test_a_row_of_pads_alone_leaves_the_others_and_all_gradients_finite(model):
    source = pad([*SOURCES, []], "right", 0)
    labels = torch.tensor([[5, EOS], [6, EOS], [7, EOS], [8, EOS]])
    model(input_ids=source, labels=labels).loss.backward()
    assert all(torch.isfinite(value.grad).all() for value in model.parameters())


@torch.no_grad()
def test_one_step_at_a_time_is_the_whole_at_once(model):
    source = pad(SOURCES, "right", 0)
    target = random_tokens(3, 6, seed=3)
    whole = model(input_ids=source, decoder_input_ids=target).logits
    encoded, cache, steps = model.encoder(source), None, []
    for t in range(6):
        given = {"encoder_outputs": encoded, "attention_mask": source.ne(PAD), "cache": cache}
        output = model(decoder_input_ids=target[:, t : t + 1], **given)
        cache = output.cache
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_weights_of_attention_sum_to_one_and_leave_out_pads():
    model = recurrent_model("lstm-additive")
    source = pad(SOURCES, "right", 2)
    weights = model(input_ids=source, decoder_input_ids=random_tokens(3, 4)).cross_attentions[0][:, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4))
    assert (weights.masked_select(source.eq(PAD).unsqueeze(1)) == 0).all()


def log_probability(model, source: list[int], output: list[int]) -> float:
    logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0, *output[:-1]]])).logits[0]
    return sum(logits.log_softmax(-1)[t, token].item() for t, token in enumerate(output))


def search(model, source: list[int], beams: int, alpha: float) -> list[int]:
    """The best output by an independent beam search without a cache: 2 x beams candidates a step, as GNMT's."""
    open_, done = [([], 0.0)], []
    barred = {0, PAD}
    while open_ and len(open_[0][0]) < len(source) + 50:
        grown = []
        for tokens, score in open_:
            logits = (
                model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0, *tokens]]))
                .logits[0, -1]
                .log_softmax(-1)
            )
            grown += [([*tokens, t], score + logits[t].item()) for t in range(23) if t not in barred]
        grown.sort(key=lambda entry: -entry[1])
        done += [entry for entry in grown[:beams] if entry[0][-1] == EOS]
        open_ = [entry for entry in grown[: 2 * beams] if entry[0][-1] != EOS][:beams]
    done += open_ if open_ and len(open_[0][0]) >= len(source) + 50 else []
    return max(done, key=lambda entry: entry[1] / ((5 + len(entry[0])) / 6) ** alpha)[0]


@pytest.mark.parametrize("system", ["gru", "lstm-additive", "lstm-fed"])
@torch.no_grad()
def test_generate_finds_what_an_independent_beam_search_finds(system):
    with torch.enable_grad():
        model = taught(recurrent_model(system), steps=60)
    source = pad(SOURCES, "right", 1)
    outputs = model.generate(source)  # beam 4, alpha 0.6, input + 50
    for row, tokens in enumerate(SOURCES):
        found = [token for token in outputs[row, 1:].tolist() if token != PAD]
        expected = search(model, tokens, beams=4, alpha=0.6)
        assert found == expected, (found, expected)


def test_greedy_sampling_and_prompts_run_with_the_cache(model):
    source, mask = pad(SOURCES, "left", 0), pad(SOURCES, "left", 0).ne(PAD).long()
    cached = model.generate(source, attention_mask=mask, num_beams=1, max_new_tokens=7)
    plain = model.generate(source, attention_mask=mask, num_beams=1, max_new_tokens=7, use_cache=False)
    assert cached.tolist() == plain.tolist()
    prompt = torch.tensor([[0, 7, 9]] * 3)
    continued = model.generate(source, decoder_input_ids=prompt, num_beams=2, max_new_tokens=4)
    assert continued[:, :3].tolist() == prompt.tolist()
    assert model.generate(source, do_sample=True, num_beams=1, max_new_tokens=4).shape[1] <= 5


def test_the_loss_is_the_mean_of_the_smoothed_cross_entropy(model):
    source, labels = pad(SOURCES, "right", 0), torch.tensor([[5, 6, EOS], [7, EOS, -100], [EOS, -100, -100]])
    logits = model(input_ids=source, decoder_input_ids=torch.tensor([[0, 5, 6], [0, 7, 1], [0, 1, 1]])).logits
    kept = labels.ne(-100)
    loss = model(input_ids=source, labels=labels).loss  # evaluation mode: not smoothed
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits[kept], labels[kept]))
    model.train()
    smoothed = model(input_ids=source, labels=labels).loss
    expected = torch.nn.functional.cross_entropy(logits[kept], labels[kept], label_smoothing=0.1)
    torch.testing.assert_close(smoothed, expected)


@pytest.mark.parametrize("sharing, matrices", [("all", 1), ("decoder", 2), ("none", 3)])
def test_embeddings_are_shared_as_asked(sharing, matrices, tmp_path):
    model = recurrent_model("gru", embedding_sharing=sharing)
    heads = {model.lm_head.weight, model.decoder.embed_tokens.weight, model.encoder.embed_tokens.weight}
    assert len({id(weight) for weight in heads}) == matrices
    # 2 + 2 layers of 3 gates; the encoder's have two directions of half the width.
    d, half = 16, 8
    first, second = 3 * half * (d + half + 2), 3 * half * (d + half + 2)
    recurrent = 2 * (first + second) + 2 * 3 * d * (d + d + 2)
    assert model.num_parameters() == matrices * 23 * d + recurrent + d * d


def test_a_saved_model_is_the_same_again(tmp_path, model):
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(again) is vt.RecurrentSeq2SeqForConditionalGeneration
    weights, source = again.state_dict(), pad(SOURCES, "right", 0)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert again.generate(source).tolist() == model.generate(source).tolist()
    shipped = {path.name for path in tmp_path.glob("*.py")}
    assert shipped == {
        "config_common.py",
        "configuration_recurrent_seq2seq.py",
        "dropout_vanilla_transformer.py",
        "generation_vanilla_transformer.py",
        "loss_vanilla_transformer.py",
        "modeling_recurrent_seq2seq.py",
        "pipeline_vanilla_transformer.py",
    }


def test_first_weights_are_drawn_with_torch_s_bounds():
    torch.manual_seed(0)
    model = vt.RecurrentSeq2SeqForConditionalGeneration(vt.RecurrentSeq2SeqConfig(vocab_size=50, d_model=64))
    bound = 1 / math.sqrt(64)
    largest = max(value.abs().max().item() for value in model.decoder.recurrence.rnn.parameters())
    assert 0.95 * bound < largest <= bound
    assert model.lm_head.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)
