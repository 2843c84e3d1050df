"""The quick dropout against the definition: each element apart, kept with probability 1 - p, scaled by 1 / (1 - p)."""

import pytest
import torch

from vanilla_transformer.modeling.dropout_vanilla_transformer import Dropout

N = 400_003  # not a multiple of the four elements that share a draw


@pytest.mark.parametrize("p", [0.1, 0.3, 0.75])
def test_rate_scale_and_expectation(p):
    torch.manual_seed(0)
    y = Dropout(p)(torch.ones(N))
    kept = y.ne(0)
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p) / N) ** 0.5)
    # p is rounded to 1 / 65536, and the factor fits the rounded one
    assert y[kept].unique().item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_elements_are_dropped_independently():
    """Correlation of an element's fate with that of its next neighbours, those of the same 64 bits among them."""
    torch.manual_seed(0)
    p = 0.3
    kept = Dropout(p)(torch.ones(N)).ne(0).double() - (1 - p)
    for lag in (1, 2, 3, 4, 5, 8):
        correlation = (kept[lag:] * kept[:-lag]).mean().item() / (p * (1 - p))
        assert abs(correlation) < 5 / N**0.5


def test_the_backward_pass_drops_the_same():
    x = torch.randn(50, 21, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach(), rtol=1e-12, atol=0)


def test_one_seed_one_mask_and_the_next_call_another():
    dropout, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(), (1,), (3, 0, 2), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_and_type_stay(shape, dtype):
    y = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert y.shape == shape and y.dtype == dtype
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_nothing_is_dropped_where_nothing_should_be():
    x = torch.randn(1000)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert (Dropout(1.0)(x) == 0).all()


def test_views_that_are_not_contiguous():
    x = torch.randn(40, 30).T
    y = Dropout(0.5)(x)
    kept = y.ne(0)
    torch.testing.assert_close(y[kept], 2 * x[kept])
