"""The settings of the paper's Table 3 as data: what each row changes in the base model.

Source: Vaswani et al. 2017, Table 3 and section 5.4.
"""

# Without d_k and d_v, which are d_model / num_heads in every row but group B: they follow an overridden size.
BASE: dict[str, int | float | str] = {
    "num_encoder_layers": 6,
    "num_decoder_layers": 6,
    "d_model": 512,
    "d_ff": 2048,
    "num_heads": 8,
    "dropout": 0.1,
    "label_smoothing": 0.1,
}

_CHANGES: dict[str, dict[str, int | float | str]] = {
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
    "A-h1": {"num_heads": 1},
    "A-h4": {"num_heads": 4},
    "A-h16": {"num_heads": 16},
    "A-h32": {"num_heads": 32},
    "B-dk16": {"d_k": 16, "d_v": 64},
    "B-dk32": {"d_k": 32, "d_v": 64},
    "C-n2": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "C-n4": {"num_encoder_layers": 4, "num_decoder_layers": 4},
    "C-n8": {"num_encoder_layers": 8, "num_decoder_layers": 8},
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-drop0": {"dropout": 0.0},
    "D-drop0.2": {"dropout": 0.2},
    "D-ls0": {"label_smoothing": 0.0},
    "D-ls0.2": {"label_smoothing": 0.2},
    # The paper does not say how many positions it learned; 512 holds every sentence of newstest2013.
    "E-learned": {"positional_encoding": "learned", "max_source_positions": 512, "max_target_positions": 512},
}

PRESETS: dict[str, dict[str, int | float | str]] = {name: BASE | change for name, change in _CHANGES.items()}


def presets() -> list[str]:
    """Names that `VanillaTransformerConfig.from_preset` accepts."""
    return list(PRESETS)
