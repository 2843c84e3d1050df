"""Shortest ways through computations and models, against lengths that follow from the equations."""

import math

import pytest
import torch

from vanilla_transformer.training.ladder.critical_path import step_by_step
from vanilla_transformer.training.ladder.path_length import PathLengths, shortest_paths
from vanilla_transformer.training.ladder.short_training import ShortTraining, config_for
from vanilla_transformer.training.ladder.systems import SYSTEMS, build

N = 12
SOURCE = torch.tensor([[5, 9, 4, 7, 3, 8, 6, 5, 9, 4, 7, 3]])
INFINITE = math.inf


def lengths(unit, made, *, at=(0, 0)):
    """Lengths of made(x) for a 2 x 2 x whose number `at` is followed."""
    x, mode = torch.rand(2, 2), PathLengths(unit)
    here = torch.zeros(2, 2, dtype=torch.bool)
    here[at] = True
    mode.start(x, here)
    with torch.no_grad(), mode:
        result = made(x)
    return mode.of(result).tolist()


def test_numbers_are_followed_one_by_one():
    w = torch.rand(2, 2)
    # row 0 of the product has x[0, 0] in it, row 1 has not; relu and sum follow
    assert lengths("operations", lambda x: (x @ w).relu() + w) == [[3, 3], [INFINITE, INFINITE]]
    assert lengths("products", lambda x: (x @ w).relu() + w) == [[1, 1], [INFINITE, INFINITE]]
    assert lengths("operations", lambda x: w @ x) == [[1, INFINITE], [1, INFINITE]]
    assert lengths("operations", lambda x: torch.cat([w, x.T * 2])[1:].contiguous()) == [
        [INFINITE, INFINITE],
        [1, INFINITE],
        [INFINITE, INFINITE],
    ]


def test_the_shorter_of_two_ways_counts():
    def residual(x):
        return x + torch.tanh(torch.sigmoid(x))  # 1 along x itself, 3 through the functions

    assert lengths("operations", residual)[0][0] == 1


def test_what_is_computed_along_a_dimension_depends_on_all_of_it():
    assert lengths("operations", lambda x: x.softmax(1)) == [[1, 1], [INFINITE, INFINITE]]
    assert lengths("operations", lambda x: x.softmax(0)) == [[1, INFINITE], [1, INFINITE]]
    norm = torch.nn.LayerNorm(2)
    assert lengths("operations", norm) == [[1, 1], [INFINITE, INFINITE]]


def test_a_masked_number_is_reached_by_no_way():
    mask = torch.tensor([[True, False], [False, False]])
    assert lengths("operations", lambda x: x.softmax(1).masked_fill(mask, 0.0))[0] == [INFINITE, 2]


def test_ways_go_through_views_and_what_is_written_in_place():
    def through_a_buffer(x):
        buffer = torch.zeros(4)
        buffer.view(2, 2)[1] = x[0]  # moved
        buffer[2:].mul_(2).tanh_()
        return buffer

    assert lengths("operations", through_a_buffer) == [INFINITE, INFINITE, 2, INFINITE]


def test_an_operation_that_is_not_known_is_an_error_and_not_a_wrong_count():
    with pytest.raises(RuntimeError, match="cumsum"):
        lengths("operations", lambda x: x.cumsum(0))


def model_of(system, layers=1):
    torch.manual_seed(0)
    return build(config_for(SYSTEMS[system], ShortTraining(layers=layers), vocab_size=35))


def ways(system, unit, layers=1):
    """{end: [length from position 0, ..., N - 1]}"""
    model = model_of(system, layers)
    found = [shortest_paths(model, SOURCE, position, unit) for position in range(N)]
    return {end: [one[end] for one in found] for end in ("encoded", "answer")}


# What `encoded` has besides: outputs at padding are multiplied away.
MASK = 1


def test_an_elman_network_has_a_product_a_step():
    # h_t = tanh(W x_t + U h_{t-1}): from x_i to h_{N-1} one product with W and N - 1 - i with U. The answer is one more
    # step, tanh(W y + U h_{N-1}), then the output layer and the softmax's matrix.
    products = ways("rnn", "products")
    assert products["encoded"] == [1 + (N - 1 - i) for i in range(N)]
    assert products["answer"] == [1 + (N - 1 - i) + 3 for i in range(N)]
    # product, sum and tanh a step; tanh between the output layer and the softmax's matrix
    operations = ways("rnn", "operations")
    assert operations["encoded"] == [3 * (N - i) + MASK for i in range(N)]
    assert operations["answer"] == [3 * (N - i) + 3 + 3 for i in range(N)]


def test_two_elman_layers_add_one_product_for_the_layer_between():
    assert ways("rnn", "products", layers=2)["encoded"] == [2 + (N - 1 - i) for i in range(N)]


def test_an_lstm_s_memory_is_passed_on_by_a_gate_and_a_sum_and_no_product():
    operations, products = ways("lstm", "operations"), ways("lstm", "products")
    # c_t = f c_{t-1} + i g, two a step. Into it: product, sum, tanh, times i, sum; out of it: tanh, times o.
    # From the last token but one the way through h is shorter, and so it is from the last.
    assert operations["encoded"][: N - 2] == [5 + 2 * (N - 1 - i) + 2 + MASK for i in range(N - 2)]
    assert operations["answer"][: N - 2] == [5 + 2 * (N - i) + 2 + 3 for i in range(N - 2)]
    assert products["encoded"] == [1] * N  # W x_i
    assert products["answer"] == [3] * N  # then the output layer and the softmax's matrix


def test_a_gru_s_state_is_passed_on_by_three_operations_and_no_product():
    operations, products = ways("gru", "operations"), ways("gru", "products")
    # h_t = z (h_{t-1} - n) + n, three a step. Into it: product, sum, tanh, sum.
    assert operations["encoded"] == [4 + 3 * (N - 1 - i) + MASK for i in range(N)]
    assert operations["answer"] == [4 + 3 * (N - i) + 3 for i in range(N)]
    assert products["encoded"] == [1] * N
    assert products["answer"] == [3] * N


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_attention_shortens_the_way_to_the_answer_but_not_the_encoder_s(cell):
    with_attention, without = ways(f"{cell}-attention", "operations"), ways(cell, "operations")
    assert len(set(with_attention["answer"])) == 1
    assert with_attention["encoded"] == without["encoded"]
    assert with_attention["answer"][0] < without["answer"][N - 1]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_transformer_has_the_same_way_from_everywhere(layers):
    for unit in ("operations", "products"):
        found = ways("transformer", unit, layers)
        assert len(set(found["answer"])) == 1
        # between different tokens; a token reaches itself along the residual connection
        assert len(set(found["encoded"][: N - 1])) == 1
        assert found["encoded"][N - 1] < found["encoded"][0]
    # W_v, the weights with the values, W_o: residual connections lead past all other layers
    assert ways("transformer", "products", layers)["encoded"] == [3] * (N - 1) + [0]


@pytest.mark.parametrize("system", SYSTEMS)
def test_there_is_a_way_exactly_where_the_gradient_is_not_zero(system):
    # from one source token to the encoder's outputs at all positions
    model, position = model_of(system).double().eval(), 5
    model.set_attn_implementation("eager")
    encoder, mode, embedded = model.get_encoder(), PathLengths("operations"), []
    here_S1 = torch.arange(N).eq(position).unsqueeze(-1)

    def follow(_module, _inputs, x_1SD):
        embedded.append(x_1SD.detach().requires_grad_())
        return embedded[0]

    hook = encoder.embed_tokens.register_forward_hook(follow)
    out_1SD = encoder(input_ids=SOURCE).last_hidden_state
    weights_D = torch.rand(out_1SD.shape[-1], dtype=torch.double)  # a norm would make plain sums constant
    gradients = [
        torch.autograd.grad((out_1SD[0, t] * weights_D).sum(), embedded[0], retain_graph=True)[0] for t in range(N)
    ]
    hook.remove()
    reached = [bool(gradient[0, position].ne(0).any()) for gradient in gradients]

    start = encoder.embed_tokens.register_forward_hook(
        lambda _module, _inputs, x: mode.start(x, here_S1.expand(x.shape))
    )
    with torch.no_grad(), step_by_step(), mode:
        followed_1SD = encoder(input_ids=SOURCE).last_hidden_state
    start.remove()
    assert mode.of(followed_1SD)[0].min(1).values.isfinite().tolist() == reached
    assert reached == [True] * N if system == "transformer" else [t >= position for t in range(N)]
