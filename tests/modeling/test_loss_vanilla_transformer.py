"""The blockwise loss against its definition over full logits, in float64."""

import pytest
import torch
from small_models import EOS, random_tokens, small_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vanilla_transformer.modeling import loss_vanilla_transformer
from vanilla_transformer.modeling.loss_vanilla_transformer import smoothed_cross_entropy

M, D, N = 37, 8, 50


def by_hand(hidden, weight, bias, labels, epsilon, over):
    """-sum over tokens and vocabulary of q log p (section 5.4), with q written out token by token."""
    logits = hidden @ weight.T + (0 if bias is None else bias)
    log_p = logits - torch.log(torch.exp(logits).sum(1, keepdim=True))
    q = torch.zeros_like(log_p)
    for row, label in enumerate(labels.tolist()):
        if label == -100:
            continue
        q[row] = epsilon / (N if over == "vocabulary" else N - 1)
        q[row, label] = 1 - epsilon + (epsilon / N if over == "vocabulary" else 0)
        assert q[row].sum() == pytest.approx(1)
    return -(q * log_p).sum()


def inputs(bias=True, dtype=torch.float64, scale=1.0):
    random = torch.Generator().manual_seed(4)
    hidden = (scale * torch.randn(M, D, generator=random, dtype=torch.float64)).to(dtype)
    weight = torch.randn(N, D, generator=random, dtype=torch.float64).to(dtype)
    shift = torch.randn(N, generator=random, dtype=torch.float64).to(dtype) if bias else None
    labels = torch.randint(N, (M,), generator=random)
    return [t.requires_grad_() if t is not None else None for t in (hidden, weight, shift)], labels


def copies(tensors):
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


@pytest.fixture(params=[(3, 3), (1, 1), (12, 5), (1000, 2), (1000, 1000)], ids="blocks-{0[0]}-slices-{0[1]}".format)
def blocks(request, monkeypatch):
    """37 tokens in blocks of at most 3 leave one over; a block smaller than the vocabulary still holds one token."""
    block, rows = request.param
    monkeypatch.setattr(loss_vanilla_transformer, "BLOCK_LOGITS", block * N if block > 1 else 1)
    monkeypatch.setattr(loss_vanilla_transformer, "SLICE_LOGITS", rows * N if rows > 1 else 1)


@pytest.mark.parametrize(
    ("length", "limit", "sizes"),
    [(37, 12, [10, 10, 10, 7]), (12, 12, [12]), (13, 12, [7, 6]), (5, 0, [1] * 5), (0, 12, []), (3, 1000, [3])],
)
def test_slices_are_few_even_and_cover_everything(length, limit, sizes):
    slices = loss_vanilla_transformer._even_slices(length, limit)
    assert [len(range(length)[part]) for part in slices] == sizes
    assert [row for part in slices for row in range(length)[part]] == list(range(length))


@pytest.mark.parametrize("over", ["vocabulary", "others"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("ignored", [0, 5], ids=["", "ignored"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_loss_and_gradients_are_the_definition(blocks, over, epsilon, ignored, bias):
    tensors, labels = inputs(bias)
    labels[:: M // ignored if ignored else M + 1] = -100 if ignored else labels[0]
    plain = copies(tensors)
    loss = smoothed_cross_entropy(*tensors, labels, epsilon, over)
    expected = by_hand(*plain, labels, epsilon, over)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    (loss * 3 / 7).backward()  # a factor stands for the division by the number of tokens
    (expected * 3 / 7).backward()
    for ours, theirs in zip(tensors, plain, strict=True):
        if ours is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-12)


def test_extreme_logits_stay_exact(blocks):
    """Probabilities that underflow in float64: here log p is the label's distance to the largest logit."""
    tensors, labels = inputs(bias=False, scale=3000.0)
    loss = smoothed_cross_entropy(*tensors, labels, 0.1, "vocabulary")
    hidden, weight, _ = tensors
    log_p = torch.log_softmax(hidden @ weight.T, 1)
    q = torch.full_like(log_p, 0.1 / N)
    q[range(M), labels] += 0.9
    torch.testing.assert_close(loss, -(q * log_p).sum(), rtol=1e-12, atol=0)
    loss.backward()
    assert all(t.grad.isfinite().all() for t in (hidden, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_near_float64(blocks, dtype):
    """bfloat16 rounds each number by up to 2^-9: the loss keeps to 1 %, gradients to 2 % of their largest entry."""
    tensors, labels = inputs(dtype=dtype)
    plain = copies(tensors)
    loss = smoothed_cross_entropy(*tensors, labels, 0.1, "vocabulary")
    expected = by_hand(*plain, labels, 0.1, "vocabulary")
    assert loss.dtype == torch.float32  # sums of thousands of tokens do not fit bfloat16
    loss_tolerance, gradient_tolerance = (1e-6, 1e-5) if dtype == torch.float32 else (1e-2, 2e-2)
    assert loss.item() == pytest.approx(expected.item(), rel=loss_tolerance)
    loss.backward()
    expected.backward()
    for ours, theirs in zip(tensors, plain, strict=True):
        assert ours.grad.dtype == dtype
        error = (ours.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()
        assert error < gradient_tolerance


def test_autocast_to_bfloat16_stays_near_float64(blocks):
    tensors, labels = inputs(dtype=torch.float32)
    plain = copies(tensors)
    with torch.autocast("cpu", torch.bfloat16):
        loss = smoothed_cross_entropy(*tensors, labels, 0.1, "vocabulary")
    expected = by_hand(*plain, labels, 0.1, "vocabulary")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-2)
    loss.backward()
    expected.backward()
    for ours, theirs in zip(tensors, plain, strict=True):
        assert ours.grad.dtype == torch.float32  # parameters stay in float32
        assert (ours.grad - theirs.grad).abs().max() / theirs.grad.abs().max() < 2e-2


def test_gradients_reach_only_what_asks_for_them(blocks):
    (hidden, weight, bias), labels = inputs()
    smoothed_cross_entropy(hidden.detach(), weight, bias.detach(), labels, 0.1).backward()
    frozen = copies((hidden, weight, bias))
    by_hand(*frozen, labels, 0.1, "vocabulary").backward()
    assert hidden.grad is None and bias.grad is None
    torch.testing.assert_close(weight.grad, frozen[1].grad, rtol=1e-11, atol=1e-12)

    (hidden, weight, bias), labels = inputs()
    smoothed_cross_entropy(hidden, weight.detach(), bias, labels, 0.1).backward()
    assert weight.grad is None
    torch.testing.assert_close(hidden.grad, frozen[0].grad)
    torch.testing.assert_close(bias.grad, frozen[2].grad)


def test_second_derivatives_are_refused_not_wrong():
    (hidden, weight, bias), labels = inputs()
    loss = smoothed_cross_entropy(hidden, weight, bias, labels, 0.1) ** 2
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_all_labels_ignored_gives_zero_and_finite_gradients():
    model = small_model(output_bias=True).train()
    labels = torch.full((2, 4), -100)
    loss = model(input_ids=random_tokens(2, 5), labels=labels).loss
    assert loss.item() == 0.0
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    assert all(gradient.eq(0).all() for gradient in gradients)


@pytest.fixture
def batch():
    labels = torch.cat([random_tokens(3, 6, seed=1), torch.full((3, 1), EOS)], 1)
    labels[1, 3:] = -100
    return {"input_ids": random_tokens(3, 5), "labels": labels}


def test_num_items_divides_the_sum_over_tokens(batch):
    model = small_model().train()
    mean = model(**batch).loss.item()
    total = 7 + 3 + 7
    assert model(**batch, num_items_in_batch=100).loss.item() == pytest.approx(mean * total / 100, rel=1e-6)
    # Two halves divided by the count of both add up to the whole batch: what accumulation needs.
    count = torch.tensor(total)
    halves = [
        model(**{name: rows[part] for name, rows in batch.items()}, num_items_in_batch=count).loss.item()
        for part in (slice(0, 1), slice(1, 3))
    ]
    assert sum(halves) == pytest.approx(mean, rel=1e-6)


def test_smoothing_is_for_training_only(batch):
    smoothed, plain = small_model(label_smoothing=0.3), small_model(label_smoothing=0.0)
    assert smoothed.eval()(**batch).loss.item() == pytest.approx(plain.eval()(**batch).loss.item(), rel=1e-6)
    assert smoothed.train()(**batch).loss.item() != pytest.approx(plain.train()(**batch).loss.item(), rel=1e-3)


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any tensor allocated meanwhile had; views are not counted."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor) and tensor.data_ptr() not in given:
                self.elements = max(self.elements, tensor.numel())
        return outputs


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_logits_of_all_tokens_never_exist(monkeypatch, training):
    vocabulary, block = 2000, 10_000
    monkeypatch.setattr(loss_vanilla_transformer, "BLOCK_LOGITS", block)
    model = small_model(vocab_size=vocabulary, output_bias=True).train(training)
    batch = {"input_ids": random_tokens(8, 10), "labels": random_tokens(8, 25)}
    with LargestTensor() as largest, torch.set_grad_enabled(training):
        loss = model(**batch, compute_logits=False).loss
        if training:
            loss.backward()
    # The largest is the embedding matrix (or its gradient); 200 tokens of logits would be 12 times that.
    assert block <= largest.elements <= vocabulary * 16 < 8 * 25 * vocabulary


def test_no_gradient_is_computed_where_none_is_asked(monkeypatch):
    """Validation costs a forward pass: nothing of the size of the weight's gradient is made without grad mode."""
    (hidden, weight, bias), labels = inputs()
    monkeypatch.setattr(loss_vanilla_transformer, "BLOCK_LOGITS", 2 * N)
    with torch.no_grad(), LargestTensor() as largest:
        smoothed_cross_entropy(hidden, weight, bias, labels, 0.1)
    assert largest.elements == 2 * N  # a block of logits; the weight's gradient would have 400, the hidden states' 296


@pytest.mark.parametrize("over", ["vocabulary", "others"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_logits_that_exist_give_the_same_loss_and_gradients(batch, training, over):
    model = small_model(output_bias=True, label_smoothing=0.2, label_smoothing_over=over).double().train(training)
    found = []
    for compute_logits in (True, False):
        model.zero_grad()
        loss = model(**batch, compute_logits=compute_logits).loss
        loss.backward()
        found.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)
    # And the loss hangs on them: who changes them by hand learns from it.
    output = model(**batch, compute_logits=True)
    [slope] = torch.autograd.grad(output.loss, output.logits)
    assert slope[batch["labels"].ne(-100)].abs().min() > 0


def test_logits_are_left_out_only_where_the_loss_is_trained(batch):
    model = small_model()
    assert model.eval()(**batch).logits.shape == (3, 7, 23)
    assert model.train()(**batch).logits is None
    assert model(**batch, compute_logits=True).logits.shape == (3, 7, 23)
    del batch["labels"]
    assert model(**batch, decoder_input_ids=random_tokens(3, 2)).logits.shape == (3, 2, 23)
