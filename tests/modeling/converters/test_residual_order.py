"""The same model with its dimensions in another order."""

import pytest
import torch
from small_models import random_tokens, small_model

from vanilla_transformer.modeling.converters.residual_order import with_concatenated_sinusoids


@pytest.mark.parametrize(
    "fields",
    [{}, {"norm_position": "pre", "attention_bias": True, "output_bias": True, "embedding_sharing": "none"}],
    ids=["paper", "others"],
)
def test_logits_stay_the_same(fields):
    model = small_model(**fields)
    other = small_model(seed=1, sinusoid_layout="concatenated", **fields)
    other.load_state_dict(with_concatenated_sinusoids(model.state_dict(), model.config.d_model))
    batch = {"input_ids": random_tokens(3, 9), "decoder_input_ids": random_tokens(3, 8, seed=1)}
    with torch.no_grad():
        wanted = model(**batch).logits
        torch.testing.assert_close(other(**batch).logits, wanted, rtol=1e-4, atol=1e-4)
    # The order matters: without it the sinusoids meet other dimensions.
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert (other(**batch).logits - wanted).abs().max() > 0.1
