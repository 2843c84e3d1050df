"""One model's first weights in the forms of several sides, for bench_train.py."""

from pathlib import Path

import torch
from bench_train_figures import Dimensions
from peers.worker import BOS, EOS, PAD
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.converters import joeynmt, marian
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


def config_of(model: Dimensions, label_smoothing: float) -> VanillaTransformerConfig:
    """The paper's model of these dimensions, with the workers' special tokens."""
    return VanillaTransformerConfig(
        vocab_size=model.vocabulary,
        d_model=model.d_model,
        d_ff=model.d_ff,
        num_encoder_layers=model.layers,
        num_decoder_layers=model.layers,
        num_heads=model.heads,
        dropout=model.dropout,
        label_smoothing=label_smoothing,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )


def write_weights(
    model: Dimensions, label_smoothing: float, tokenizer: PreTrainedTokenizerBase, seed: int, folder: Path
) -> int:
    """Make FOLDER/ours, FOLDER/marian and FOLDER/joeynmt.pt of one random model; returns its number of parameters."""
    torch.manual_seed(seed)
    ours = VanillaTransformerForConditionalGeneration(config_of(model, label_smoothing))
    ours.save_pretrained(folder / "ours")
    marian.write(ours, tokenizer, folder / "marian")
    torch.save(joeynmt_weights(ours), folder / "joeynmt.pt")
    return ours.num_parameters()


def joeynmt_weights(model: VanillaTransformerForConditionalGeneration) -> dict[str, torch.Tensor]:
    """By JoeyNMT's names; its biases of attention, which the paper leaves out, are zero."""
    ours = model.state_dict()
    embedding = ours["model.decoder.embed_tokens.weight"]
    found = dict.fromkeys(("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"), embedding)
    for side, layers in (("encoder", model.model.encoder.layers), ("decoder", model.model.decoder.layers)):
        for number in range(len(layers)):
            for our_part, their_part in joeynmt.LAYERS[side].items():
                weight = ours[f"model.{side}.layers.{number}.{our_part}.weight"]
                bias = ours.get(f"model.{side}.layers.{number}.{our_part}.bias", weight.new_zeros(len(weight)))
                theirs = f"{side}.layers.{number}.{their_part}"
                found |= {f"{theirs}.weight": weight, f"{theirs}.bias": bias}
    return found
