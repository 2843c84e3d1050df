"""The longest chain of products, against chains that are known."""

import pytest
import torch
from torch import nn

from vanilla_transformer.training.ladder.critical_path import longest_chain


def test_independent_products_count_once_and_dependent_ones_add_up():
    a = torch.randn(3, 3)
    assert longest_chain(lambda: [a @ a for _ in range(5)]) == 1

    def power():
        b = a
        for _ in range(5):
            b = torch.tanh(b) @ a + 1
        return b

    assert longest_chain(power) == 5
    # two branches of 2 and 3 products meet in one more
    assert longest_chain(lambda: (a @ a @ a) @ (a @ a @ a @ a)) == 4


def test_a_chain_goes_through_views_and_in_place_writes():
    a = torch.randn(4, 4)

    def through_a_buffer():
        buffer = torch.zeros(2, 4, 4)
        buffer[0] = a @ a  # 1
        view = buffer.view(8, 4)
        return view[:4] @ a  # 2

    assert longest_chain(through_a_buffer) == 2
    assert longest_chain(lambda: torch.zeros(4, 4).addmm_(a, a).add_(1).mm(a)) == 2


def test_memory_that_is_used_again_begins_anew():
    a = torch.randn(64, 64)

    def many():
        for _ in range(50):
            b = a @ a  # freed in each turn, and its memory given to the next
            del b
        return torch.ones(64, 64) * 2

    assert longest_chain(many) == 1


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_a_recurrent_layer_is_a_chain_of_its_steps(kind, n):
    # The first state is given, so W h_0 waits for nothing: inputs, then a product at each step after the first.
    one, two = kind(6, 6, batch_first=True), kind(6, 6, num_layers=2, batch_first=True)
    x = torch.randn(2, n, 6)
    assert longest_chain(lambda: one(x)) == n
    assert longest_chain(lambda: two(x)) == 2 * n


def test_a_hand_written_recurrence_has_as_long_a_chain_as_torch_s():
    # h_t = tanh(W x_t + U h_{t-1}), each x_t by itself
    w, u = torch.randn(6, 6), torch.randn(6, 6)
    xs = torch.randn(7, 2, 6)

    def steps():
        h = torch.zeros(2, 6)
        for x in xs:
            h = torch.tanh(x @ w + h @ u)

    assert longest_chain(steps) == 7


def test_attention_is_two_products_whether_fused_or_not():
    q = torch.randn(1, 2, 5, 4)
    fused = longest_chain(lambda: nn.functional.scaled_dot_product_attention(q, q, q))
    assert fused == longest_chain(lambda: (q @ q.transpose(-1, -2)).softmax(-1) @ q) == 2


def test_the_backward_pass_is_part_of_the_chain():
    w = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(2, 4)

    def update():
        y = x
        for _ in range(3):
            y = torch.relu(y @ w)
        y.sum().backward()

    # three products forward; backward, the last one's gradient passes two of them and ends in the first one's weight
    assert longest_chain(update) == 6


def test_a_kernel_that_hides_its_products_is_refused():
    lstm = nn.LSTM(4, 4)
    x = torch.randn(3, 1, 4)
    from vanilla_transformer.training.ladder.critical_path import CriticalPath

    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no fused recurrent kernel for the CPU")
    with pytest.raises(RuntimeError, match="mkldnn_rnn_layer hides"), CriticalPath():
        lstm(x)


def test_the_setting_is_put_back():
    before = torch.backends.mkldnn.set_flags()[0]
    longest_chain(lambda: None)
    assert torch.backends.mkldnn.set_flags()[0] == before
