"""The bridge from JoeyNMT, for conversions.py: JoeyNMT's own classes compute and search with a model's weights.

JoeyNMT 2.3.0 pins a protobuf that nothing else here takes, so it is not installed: its wheel is unpacked, and
importlib_metadata and subword-nmt are put where Python finds them.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml

from vanilla_transformer.modeling.converters import joeynmt as converter

UNK, PAD, BOS, EOS = "<unk>", "<pad>", "<s>", "</s>"
ALPHA, BEAMS = 0.6, 4


def joeynmt_bridge(
    package: Path, model: Any, tokenizer: Any, work: Path, sentences: Any, own: list[list[int]]
) -> dict[str, Any]:
    """MODEL's weights in JoeyNMT's classes, saved as its checkpoints are, converted back, and compared with it.

    JoeyNMT has what the paper leaves out: biases in attention get random values here.
    """
    from conversions import GREEDY, difference, logits_of, same

    sys.path.insert(0, str(package))
    from joeynmt.model import build_model
    from joeynmt.search import beam_search, greedy
    from joeynmt.vocabulary import Vocabulary

    # JoeyNMT's special tokens come first, in this order: every token of ours has another number there.
    special = {"unk": UNK, "pad": PAD, "bos": BOS, "eos": EOS}
    config = model.config
    tokens = tokenizer.convert_ids_to_tokens(list(range(config.vocab_size)))
    order = [tokens.index(token) for token in special.values()]
    order += [number for number in range(config.vocab_size) if number not in order]
    place = {number: index for index, number in enumerate(order)}
    symbols: dict[str, Any] = {f"{role}_token": token for role, token in special.items()}
    symbols |= {f"{role}_id": number for number, role in enumerate(special)}
    settings = _settings(config, symbols)
    ordinary = [tokens[number] for number in order[len(special) :]]
    vocabulary = Vocabulary(ordinary, SimpleNamespace(**symbols, sep_token=None, sep_id=None, lang_tags=[]))
    theirs = build_model(settings["model"], vocabulary, vocabulary).eval()
    theirs.load_state_dict(_weights(theirs, model, settings, order))
    folder = work / "joeynmt"
    folder.mkdir()
    torch.save({"model_state": theirs.state_dict()}, folder / "1.ckpt")
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        vocabulary.to_file(folder / name)
    ours = converter.read(folder).model
    sentences = type(sentences)([[place[number] for number in row] for row in sentences.rows], ours.config)
    own = [[place[number] for number in row] for row in own]

    def encoded(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        mask = batch["attention_mask"].bool().unsqueeze(1)
        lengths = batch["attention_mask"].sum(1)
        return theirs(return_type="encode", src=batch["input_ids"], src_length=lengths, src_mask=mask)[0], mask

    def logits(batch: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        memory, mask = encoded(batch)
        inputs = {"trg_input": target, "encoder_output": memory, "encoder_hidden": None, "src_mask": mask}
        own_mask = torch.ones(len(target), 1, target.shape[1], dtype=torch.bool)
        steps = {"unroll_steps": target.shape[1], "decoder_hidden": None, "trg_mask": own_mask}
        return theirs(return_type="decode", **inputs, **steps)[0]

    def search(with_beams: bool) -> list[list[int]]:
        rows = []
        for batch in sentences.batches():
            memory, mask = encoded(batch)
            common = {"src_mask": mask, "max_output_length": 100, "model": theirs, "encoder_output": memory}
            common |= {"encoder_hidden": None, "return_attention": False, "return_prob": "none", "generate_unk": True}
            if with_beams:
                found, *_ = beam_search(**common, beam_size=BEAMS, alpha=ALPHA, n_best=1)
            else:
                found, *_ = greedy(**common)
            rows += [sentences.cut(row) for row in found.tolist()]
        return rows

    one = GREEDY | {"max_new_tokens": 100, "suppress_tokens": []}
    beams = {"num_beams": BEAMS, "length_penalty": ALPHA, "max_new_tokens": 100, "suppress_tokens": []}
    with torch.no_grad():
        found, found_by_beams = search(False), search(True)
    return {
        "from_joeynmt": difference(logits, logits_of(ours), sentences, own)
        | {
            "identical_translations": same(sentences.translate(ours, **one), found),
            "search": one,
            "identical_translations_by_beam_search": same(sentences.translate(ours, **beams), found_by_beams),
            "beam_search": beams | {"length_penalty_type": "gnmt"},
        }
    }


def _settings(config: Any, symbols: dict[str, Any]) -> dict[str, Any]:
    """JoeyNMT's description of the paper's model at this one's sizes."""
    initial = {"initializer": "xavier_uniform", "init_gain": 1.0, "bias_initializer": "zeros"}
    initial |= {"embed_initializer": "xavier_uniform", "embed_init_gain": 1.0}
    sides = {
        side: {
            "type": "transformer",
            "num_layers": layers,
            "num_heads": config.num_heads,
            "embeddings": {"embedding_dim": config.d_model, "scale": True},
            "hidden_size": config.d_model,
            "ff_size": config.d_ff,
            "dropout": 0.1,
            "layer_norm": "post",
        }
        for side, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers))
    }
    text = {"level": "word"}
    return {
        "model": initial | {"tied_embeddings": True, "tied_softmax": True, **sides},
        "data": {
            "src": text | {"lang": config.source_lang},
            "trg": text | {"lang": config.target_lang},
            "special_symbols": symbols,
        },
        "testing": {"beam_size": BEAMS, "beam_alpha": ALPHA},
    }


def _weights(theirs: Any, model: Any, settings: dict[str, Any], order: list[int]) -> dict[str, torch.Tensor]:
    """The model's weights by JoeyNMT's names; small random biases where the paper has none."""
    torch.manual_seed(0)
    state, ours = theirs.state_dict(), model.state_dict()
    embedding = ours["model.decoder.embed_tokens.weight"][order]
    for name in ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"):
        state[name] = embedding
    for side, parts in converter.LAYERS.items():
        for number in range(settings["model"][side]["num_layers"]):
            for our_part, their_part in parts.items():
                for kind in ("weight", "bias"):
                    name = f"{side}.layers.{number}.{their_part}.{kind}"
                    found = ours.get(f"model.{side}.layers.{number}.{our_part}.{kind}")
                    state[name] = 0.01 * torch.randn_like(state[name]) if found is None else found
    return state
