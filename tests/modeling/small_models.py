"""Models small enough for a test of milliseconds, with weights large enough that every part of them matters."""

from typing import Any

import torch

import vanilla_transformer as vt

BOS, PAD, EOS, UNK = 0, 1, 2, 3


def small_config(**fields: Any) -> vt.VanillaTransformerConfig:
    """2 + 2 layers of width 16, 23 tokens, nothing random; `fields` override."""
    small = {
        "vocab_size": 23,
        "d_model": 16,
        "d_ff": 24,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "dropout": 0.0,
    }
    return vt.VanillaTransformerConfig(**(small | fields))


def small_model(seed: int = 0, noise: float = 0.3, **fields: Any) -> vt.VanillaTransformerForConditionalGeneration:
    """In eval mode; `noise` moves every parameter off its initial value, so that biases are not 0 and gains not 1."""
    torch.manual_seed(seed)
    model = vt.VanillaTransformerForConditionalGeneration(small_config(**fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn_like(parameter)
    return model.eval()


def random_tokens(rows: int, length: int, vocab_size: int = 23, seed: int = 0) -> torch.Tensor:
    """(rows, length) of ordinary tokens: no <s>, <pad> or </s>."""
    return torch.randint(3, vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def taught(model: vt.VanillaTransformerForConditionalGeneration, steps: int = 80, seed: int = 0):
    """`model` after a few steps of learning to reverse 3 to 7 tokens: it has opinions, ends its outputs, and errs."""
    config = model.config
    special = {config.bos_token_id, config.pad_token_id, config.eos_token_id, config.decoder_start_token_id}
    words = torch.tensor([token for token in range(config.vocab_size) if token not in special])
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.98))
    model.train()
    for _ in range(steps):
        length = int(torch.randint(3, 8, (), generator=random))
        source = words[torch.randint(len(words), (32, length), generator=random)]
        end = torch.full((32, 1), config.eos_token_id)
        loss = model(input_ids=torch.cat([source, end], 1), labels=torch.cat([source.flip(1), end], 1)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
