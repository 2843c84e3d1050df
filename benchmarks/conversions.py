"""How equal converted models are: the largest difference of logits and identical translations, for each bridge.

    python benchmarks/conversions.py runs/multi30k-en-de/final test_2016_flickr.lc.norm.tok.en.gz \
        --engine-model ct2_aren-translit --joeynmt joeynmt-2.3.0

MODEL is a trained model of ours, SOURCE text of its language, of which the first 500 lines are taken. Logits are those
of our own translations; of CTranslate2, which gives none, the log-probabilities of their tokens. Each pair of
translations comes from one search that both sides can be told. --engine-model is a folder of CTranslate2's own;
--joeynmt a folder that JoeyNMT 2.3.0's wheel was unpacked into, whose classes then compute with MODEL's weights.
Writes benchmarks/results/conversions.json and the page beside it when all of the 500 lines are there.
"""

import argparse
import gzip
import json
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnxruntime
import torch
from accelerate import Accelerator
from conversions_report import report
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianConfig, MarianMTModel, PreTrainedModel
from transformers.utils import logging as transformers_logging

from vanilla_transformer.modeling.converters import ctranslate2_reading, marian, onnx
from vanilla_transformer.training.conversion import convert_from, convert_to
from vanilla_transformer.training.durable import write_json, write_text
from vanilla_transformer.training.manifest import LIBRARIES, code_version, hardware
from vanilla_transformer.training.saved_model import load_model
from vanilla_transformer.training.text_files import read_lines

RESULT = Path(__file__).resolve().parent / "results" / "conversions.json"
LINES = 500
BATCH = 50
# Searches by name, in transformers' words.
POWER = {"num_beams": 4, "length_penalty": 0.6, "early_stopping": False, "max_new_tokens": 255}
NO_PENALTY = {
    "num_beams": 4,
    "length_penalty": 0.0,
    "early_stopping": False,
    "max_new_tokens": 255,
    "suppress_tokens": [],
}
GREEDY = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False, "max_new_tokens": 255}
OURS = {"length_penalty_type": "power"}


class Sentences:
    """Source lines as token ids, in padded batches; translations are rows of token ids without <s> and </s>."""

    def __init__(self, rows: list[list[int]], config: Any):
        self.rows = rows
        self.pad, self.end, self.start = config.pad_token_id, config.eos_token_id, config.decoder_start_token_id

    def batches(self) -> Iterator[dict[str, torch.Tensor]]:
        for first in range(0, len(self.rows), BATCH):
            rows = self.rows[first : first + BATCH]
            ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=self.pad)
            mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True)
            yield {"input_ids": ids, "attention_mask": mask}

    def cut(self, row: list[int]) -> list[int]:
        return row[: row.index(self.end)] if self.end in row else [token for token in row if token != self.pad]

    def translate(self, model: PreTrainedModel, **search: Any) -> list[list[int]]:
        return [self.cut(row) for batch in self.batches() for row in model.generate(**batch, **search)[:, 1:].tolist()]

    def decoder_inputs(self, translations: list[list[int]]) -> Iterator[torch.Tensor]:
        """<s> and each translation, in batches as the sources'."""
        rows = [torch.tensor([self.start, *row]) for row in translations]
        for first in range(0, len(rows), BATCH):
            yield pad_sequence(rows[first : first + BATCH], batch_first=True, padding_value=self.pad)


# Logits (B, T, N) of a batch and its decoder inputs (B, T).
Logits = Callable[[dict[str, torch.Tensor], torch.Tensor], torch.Tensor]


def logits_of(model: PreTrainedModel) -> Logits:
    return lambda batch, target: model(**batch, decoder_input_ids=target).logits


def difference(one: Logits, other: Logits, sentences: Sentences, translations: list[list[int]]) -> dict[str, float]:
    """Over every token of the translations: the largest difference, and the logits' own spread to hold it against."""
    largest, spreads = 0.0, []
    with torch.no_grad():
        for batch, target in zip(sentences.batches(), sentences.decoder_inputs(translations), strict=True):
            real = target.ne(sentences.pad)
            real[:, 0] = True
            first, second = (logits(batch, target)[real] for logits in (one, other))
            largest = max(largest, (first - second).abs().max().item())
            spreads.append(first.std().item())
    return {"largest_logit_difference": largest, "standard_deviation_of_logits": float(np.mean(spreads))}


def same(one: list[list[int]], other: list[list[int]]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def marian_bridge(model: Any, folder: Path, work: Path, sentences: Sentences, own: list[list[int]]) -> dict[str, Any]:
    convert_to("marian", str(folder), work / "marian")
    convert_from("marian", work / "marian", work / "from-marian")
    theirs = MarianMTModel.from_pretrained(work / "marian").eval()
    back, _ = load_model(work / "from-marian", device="cpu")
    wanted = sentences.translate(theirs, **POWER)
    return {
        "to_marian": difference(logits_of(model), logits_of(theirs), sentences, own)
        | {
            "identical_translations": same(sentences.translate(model, **POWER, **OURS), wanted),
            "search": POWER,
            "identical_to_the_paper_s_search": same(own, wanted),
        },
        "from_marian": difference(logits_of(theirs), logits_of(back), sentences, own)
        | {"identical_translations": same(sentences.translate(back, **POWER, **OURS), wanted), "search": POWER},
    }


def opus_mt_bridge(work: Path, tokenizer: Any, sentences: Sentences, own: list[list[int]]) -> dict[str, Any]:
    """Every part of an opus-mt model at its size, with weights that nobody trained: no bias is 0 and no gain 1."""
    torch.manual_seed(1)
    size = {"encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
    tokens = {"pad_token_id": sentences.pad, "eos_token_id": sentences.end, "decoder_start_token_id": sentences.pad}
    size |= {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "vocab_size": len(tokenizer)}
    theirs = MarianMTModel(MarianConfig(**size, **tokens, activation_function="swish", scale_embedding=True)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:  # not the sinusoids
                parameter += 0.05 * torch.randn_like(parameter)
        theirs.final_logits_bias.normal_()
    theirs.save_pretrained(work / "opus-mt")
    tokenizer.save_pretrained(work / "opus-mt")
    ours = marian.read(work / "opus-mt").model
    few = Sentences(sentences.rows[:BATCH], ours.config)
    found = difference(logits_of(theirs), logits_of(ours), few, own[:BATCH])
    return {"from_marian_untrained_opus_mt_size": found | {"lines": len(few.rows)}}


def ctranslate2_bridge(
    model: Any, folder: Path, work: Path, tokenizer: Any, sentences: Sentences, own: list[list[int]]
) -> dict[str, Any]:
    convert_to("ctranslate2", str(folder), work / "ctranslate2")
    back = ctranslate2_reading.read(work / "ctranslate2").model
    words = [tokenizer.convert_ids_to_tokens(row) for row in sentences.rows]

    def translations(engine: ctranslate2.Translator, length_penalty: float, suppress: bool) -> list[list[int]]:
        options: dict[str, Any] = {"beam_size": 4, "length_penalty": length_penalty, "max_decoding_length": 255}
        if suppress:
            options["suppress_sequences"] = [[tokenizer.pad_token], [tokenizer.bos_token]]
        results = engine.translate_batch(words, **options, min_decoding_length=0)
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    exact, small = (
        ctranslate2.Translator(str(work / "ctranslate2"), compute_type=kind) for kind in ("float32", "int8")
    )
    targets = [tokenizer.convert_ids_to_tokens(row) for row in own]
    scored = exact.score_batch(words, targets)
    largest = 0.0
    with torch.no_grad():
        number = 0
        for batch, target in zip(sentences.batches(), sentences.decoder_inputs(own), strict=True):
            log_probabilities = model(**batch, decoder_input_ids=target).logits.log_softmax(-1)
            for row in range(len(target)):
                labels = torch.tensor([*own[number], sentences.end])
                mine = log_probabilities[row, : len(labels)].gather(-1, labels.unsqueeze(-1)).squeeze(-1)
                theirs = torch.tensor(scored[number].log_probs)
                largest = max(largest, (mine - theirs).abs().max().item())
                number += 1
    wanted = translations(exact, 0.0, suppress=False)
    return {
        "to_ctranslate2_float32": {
            "largest_log_probability_difference": largest,
            "identical_translations": same(sentences.translate(model, **NO_PENALTY, **OURS), wanted),
            "search": NO_PENALTY,
            "identical_to_the_paper_s_search_with_length_penalty_0.6": same(
                own, translations(exact, 0.6, suppress=True)
            ),
        },
        "to_ctranslate2_int8": {"identical_to_float32": same(wanted, translations(small, 0.0, suppress=False))},
        "from_ctranslate2": difference(logits_of(model), logits_of(back), sentences, own)
        | {
            "identical_translations": same(sentences.translate(back, **NO_PENALTY, **OURS), wanted),
            "search": NO_PENALTY,
        },
    }


def engine_model_bridge(source: Path, work: Path, lines: int) -> dict[str, Any]:
    """A model that only CTranslate2 has, on random words of its source letters."""
    folder = work / "engine-model"
    folder.mkdir()
    for path in source.iterdir():
        data = path.read_bytes()
        (folder / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)
    converted = ctranslate2_reading.read(folder)
    letters = read_lines(folder / "source_vocabulary.txt")[3:]
    chooser = random.Random(1)
    words = [chooser.choices(letters, k=chooser.randint(1, 12)) for _ in range(lines)]
    engine = ctranslate2.Translator(str(folder), compute_type="float32")
    search = {"beam_size": 4, "length_penalty": 0, "min_decoding_length": 0}
    results = engine.translate_batch(words, **search, return_scores=True)
    wanted = [converted.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    sentences = Sentences(converted.tokenizer([" ".join(word) for word in words])["input_ids"], converted.model.config)
    found = {"identical_translations": same(sentences.translate(converted.model, **NO_PENALTY), wanted)}
    return {"from_ctranslate2_pre_norm_opennmt_tf": found | {"search": NO_PENALTY, "lines": lines}}


class Graphs:
    """The two ONNX graphs as onnxruntime runs them."""

    def __init__(self, folder: Path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / name, options) for name in (onnx.ENCODER, onnx.DECODER)
        )

    def start(self, batch: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        source = {name: tensor.numpy() for name, tensor in batch.items()}
        names = [output.name for output in self.encoder.get_outputs()]
        states = dict(zip(names, self.encoder.run(None, source), strict=True))
        for state in self.decoder.get_inputs():
            if state.name.startswith("past."):
                states[state.name] = np.zeros((len(source["input_ids"]), state.shape[1], 0, state.shape[3]), np.float32)
        return states | {"attention_mask": source["attention_mask"]}

    def step(self, states: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
        logits, *present = self.decoder.run(None, states | {"input_ids": tokens})
        names = [output.name.replace("present", "past") for output in self.decoder.get_outputs()[1:]]
        states |= dict(zip(names, present, strict=True))
        return logits

    def logits(self, batch: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        """One token at a time, so that every state passes through the graph's inputs and outputs."""
        states = self.start(batch)
        parts = [self.step(states, target[:, [place]].numpy()) for place in range(target.shape[1])]
        return torch.from_numpy(np.concatenate(parts, 1))

    def translate(self, sentences: Sentences, suppressed: list[int]) -> list[list[int]]:
        rows = []
        for batch in sentences.batches():
            states = self.start(batch)
            tokens = np.full((len(batch["input_ids"]), 1), sentences.start)
            while tokens.shape[1] <= GREEDY["max_new_tokens"] and not (tokens[:, 1:] == sentences.end).any(1).all():
                logits = self.step(states, tokens[:, -1:])[:, -1]
                logits[:, suppressed] = -np.inf
                tokens = np.concatenate([tokens, logits.argmax(-1)[:, None]], 1)
            rows += [sentences.cut(row) for row in tokens[:, 1:].tolist()]
        return rows


def onnx_bridge(model: Any, folder: Path, work: Path, sentences: Sentences, own: list[list[int]]) -> dict[str, Any]:
    convert_to("onnx", str(folder), work / "onnx")
    graphs = Graphs(work / "onnx")
    greedy = graphs.translate(sentences, model.generation_config.suppress_tokens)
    return {
        "to_onnx": difference(logits_of(model), graphs.logits, sentences, own)
        | {"identical_translations": same(sentences.translate(model, **GREEDY), greedy), "search": GREEDY}
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument("--engine-model", type=Path, help="a folder of CTranslate2's own, plain or gzipped")
    parser.add_argument("--joeynmt", type=Path, help="a folder that JoeyNMT's wheel was unpacked into")
    arguments = parser.parse_args()
    began = time.perf_counter()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model, tokenizer = load_model(arguments.model, device="cpu")
    lines = read_lines(arguments.source)[: arguments.lines]
    sentences = Sentences(tokenizer(lines)["input_ids"], model.config)
    own = sentences.translate(model)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        bridges = marian_bridge(model, arguments.model, work, sentences, own)
        bridges |= opus_mt_bridge(work, tokenizer, sentences, own)
        bridges |= ctranslate2_bridge(model, arguments.model, work, tokenizer, sentences, own)
        bridges |= onnx_bridge(model, arguments.model, work, sentences, own)
        if arguments.engine_model:
            bridges |= engine_model_bridge(arguments.engine_model, work, len(lines))
        if arguments.joeynmt:
            from conversions_joeynmt import joeynmt_bridge

            bridges |= joeynmt_bridge(arguments.joeynmt, model, tokenizer, work, sentences, own)
    packages = (*LIBRARIES, "ctranslate2", "onnx", "onnxruntime", "onnxscript")
    result = {
        "name": "conversions",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/conversions.py", *sys.argv[1:]]),
        "lines": len(lines),
        "distinct_translations": len({tuple(row) for row in own}),
        "code": code_version(),
        "libraries": {name: version(name) for name in packages},
        "hardware": hardware(Accelerator(cpu=True)),
        "seconds": round(time.perf_counter() - began, 1),
        "bridges": bridges,
    }
    print(json.dumps(result, indent=1))
    if len(lines) == LINES:
        write_json(RESULT, result)
        write_text(RESULT.with_suffix(".md"), report(result))


if __name__ == "__main__":
    main()
