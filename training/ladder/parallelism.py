"""What must wait for what: products one after the other against length, counted, and the time that it costs here.

Counts are of the graph that runs. Of several recurrent layers each begins when the one below has ended, as torch runs
them; a kernel that begins earlier, as it can where the layers have one direction, would need n + layers steps instead
of n x layers.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from vanilla_transformer.configuration.config_common import ConfigError
from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.critical_path import longest_chain
from vanilla_transformer.training.ladder.exhibits import Plot, Series, Table
from vanilla_transformer.training.ladder.systems import System, build, matched_config

TITLE = "Parallelism: what must wait for what"
# What is counted, and what each is called in the table.
COUNTED = {
    "encoder": "encoder",
    "decoder": "decoder in training",
    "training": "one update, forward and backward",
    "decoding": "greedy decoding",
}
_FIRST_WORD = 4  # ids below are special tokens


@dataclass(frozen=True)
class ParallelismStudy:
    """Lengths n (tokens a side, source and target alike) and the models that they are measured with."""

    # Parameters of every system, within 5%, and entries of the vocabulary.
    parameters: int = 4_000_000
    vocab_size: int = 8000
    # The Transformer's fields, and those that all recurrent systems have besides; counts depend on layers alone.
    transformer: dict[str, Any] = field(
        default_factory=lambda: {"num_encoder_layers": 4, "num_decoder_layers": 4, "num_heads": 4}
    )
    recurrent: dict[str, Any] = field(default_factory=dict)
    # Where products are counted.
    count_lengths: list[int] = field(default_factory=lambda: [4, 16, 64, 256])
    # Where an update is timed, in batches of `batch_tokens` tokens a side, but of one sentence at least.
    training_lengths: list[int] = field(default_factory=lambda: [16, 64, 256, 1024, 4096])
    batch_tokens: int = 4096
    # Where greedy decoding is timed, and how many sentences at once.
    decoding_lengths: list[int] = field(default_factory=lambda: [16, 64, 256, 1024])
    decoding_sentences: int = 1
    # Timed runs of each, after one that is not timed; the median counts.
    repeats: int = 3

    def problems(self) -> list[str]:
        numbers = ("parameters", "vocab_size", "batch_tokens", "decoding_sentences", "repeats")
        found = [f"{name} = {getattr(self, name)}: must be at least 1" for name in numbers if getattr(self, name) < 1]
        for name in ("count_lengths", "training_lengths", "decoding_lengths"):
            found += [f"{name} = {n}: must be at least 1" for n in getattr(self, name) if n < 1]
        if self.vocab_size <= _FIRST_WORD:
            found.append(f"vocab_size = {self.vocab_size}: must be above {_FIRST_WORD}, the special tokens")
        try:
            VanillaTransformerConfig(**{**self.transformer, "vocab_size": self.vocab_size})
        except (ConfigError, TypeError) as error:
            found += [f"transformer.{line.strip()}" for line in str(error).splitlines()]
        return found

    def decided(self) -> dict[str, Any]:
        """What a finished cell depends on; lengths may be added later."""
        return {name: value for name, value in asdict(self).items() if not name.endswith("_lengths")}


def run(settings: ParallelismStudy, systems: Sequence[System], folder: Path) -> None:
    """Measure every cell that folder/parallelism.json lacks, on the CPU and, where there is one, on a GPU."""
    cells = Cells(folder / "parallelism.json", settings.decided())
    for system in systems:
        model = _model(system, settings)
        for n in settings.count_lengths:
            for what in COUNTED:
                if not cells.done(key := f"{system.name}/products/{what}/{n}"):
                    products = count_products(model, what, n)
                    cells.put(key, {"system": system.name, "counted": what, "n": n, "products": products})
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            model.to(device)
            for what, lengths in (("training", settings.training_lengths), ("decoding", settings.decoding_lengths)):
                for n in lengths:
                    if not cells.done(key := f"{system.name}/seconds/{device}/{what}/{n}"):
                        cells.put(
                            key, {"system": system.name, "timed": what, "n": n, **_timed(model, what, n, settings)}
                        )


def _model(system: System, settings: ParallelismStudy) -> PreTrainedModel:
    torch.manual_seed(0)
    config = matched_config(
        system,
        settings.parameters,
        vocab_size=settings.vocab_size,
        base={"dropout": 0.0, **settings.transformer},
        recurrent=settings.recurrent,
    )
    return build(config)


def count_products(model: PreTrainedModel, what: str, n: int) -> int:
    """Matrix products one after the other in one of COUNTED, for one sentence of n tokens a side; on the CPU.

    Each is a trace of the model's own run. "decoder" begins with the encoder's output; "decoding" reads the source and
    writes exactly n tokens.
    """
    ids_BL = _sentences(model, 1, n)
    if what == "training":
        return longest_chain(_update(model, ids_BL))
    model.eval()
    with torch.no_grad():
        if what == "encoder":
            return longest_chain(lambda: model.get_encoder()(input_ids=ids_BL))
        if what == "decoding":
            return longest_chain(_greedy(model, ids_BL))
        memory = model.get_encoder()(input_ids=ids_BL)
        mask_BL = torch.ones_like(ids_BL)
        return longest_chain(
            lambda: model(encoder_outputs=memory, attention_mask=mask_BL, decoder_input_ids=ids_BL, use_cache=False)
        )


def _timed(model: PreTrainedModel, what: str, n: int, settings: ParallelismStudy) -> dict[str, Any]:
    """Median seconds, and all of them, of an update or of decoding."""
    sentences = max(1, settings.batch_tokens // n) if what == "training" else settings.decoding_sentences
    ids_BL = _sentences(model, sentences, n)
    make: Callable[[PreTrainedModel, torch.Tensor], Callable[[], object]] = _update if what == "training" else _greedy
    work, seconds = make(model, ids_BL), []
    for _ in range(1 + settings.repeats):
        _wait(model.device)
        started = time.perf_counter()
        work()
        _wait(model.device)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    return {
        "sentences": sentences,
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "parameters": model.num_parameters(),
        "seconds": median,
        "all_seconds": seconds[1:],
        "tokens_per_second": sentences * n / median,
    }


def _update(model: PreTrainedModel, ids_BL: torch.Tensor) -> Callable[[], None]:
    """Forward and backward pass of a batch that translates itself; the optimiser's step is the same at every length."""

    def update() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        model(input_ids=ids_BL, labels=ids_BL).loss.backward()

    return update


def _greedy(model: PreTrainedModel, ids_BL: torch.Tensor) -> Callable[[], None]:
    """Greedy decoding of as many tokens as the source has, whatever the model would say."""
    n = ids_BL.shape[1]

    def decode() -> None:
        model.eval()
        model.generate(input_ids=ids_BL, num_beams=1, early_stopping=None, max_new_tokens=n, min_new_tokens=n)

    return decode


def _sentences(model: PreTrainedModel, count: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    ids_BL = torch.randint(_FIRST_WORD, model.config.vocab_size, (count, n), generator=generator)
    return ids_BL.to(model.device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Products one after the other, and times, each a column a length."""
    counted = [row for row in rows if "products" in row]
    lengths = sorted({row["n"] for row in counted})
    products = {(row["counted"], row["system"], row["n"]): row["products"] for row in counted}
    systems = list(dict.fromkeys(row["system"] for row in rows))
    made = []
    if counted:
        lines = []
        for what, title in COUNTED.items():
            for system in systems:
                found = [products.get((what, system, n)) for n in lengths]
                if any(value is not None for value in found):
                    lines.append([title, system, *found])
        made.append(
            Table(
                "Sequential operations: matrix products that wait for one another",
                ["part", "system", *(f"n = {n}" for n in lengths)],
                lines,
                "The longest chain of dependent matrix products in a trace of the model's own run for one sentence of n"
                " tokens a side. torch's recurrent modules were run as the products of their single steps, into which "
                "torch itself takes them apart without oneDNN; the inputs of all steps are one product, and each step "
                "is one more. What is not a product counts as nothing.",
            )
        )
    return made + [
        table
        for what, title in (
            ("training", "Time of an update, forward and backward"),
            ("decoding", "Time of greedy decoding"),
        )
        if (table := _time_table(rows, systems, what, title))
    ]


def _time_table(rows: Sequence[Mapping[str, Any]], systems: list[str], what: str, title: str) -> Table | None:
    timed = {(row["device"], row["system"], row["n"]): row for row in rows if row.get("timed") == what}
    if not timed:
        return None
    lengths = sorted({n for _, _, n in timed})
    devices = list(dict.fromkeys(device for device, _, _ in timed))
    one = next(iter(timed.values()))
    lines = []
    for device in devices:
        for system in systems:
            found = [timed.get((device, system, n)) for n in lengths]
            lines.append([device, system, *(row and row["seconds"] for row in found)])
    batch = "one sentence" if one["sentences"] == 1 and what == "decoding" else f"{one['sentences']} sentences"
    how = (
        "batches of a fixed number of tokens, at least one sentence"
        if what == "training"
        else f"{batch} at once, exactly n tokens"
    )
    note = (
        f"Median seconds; {how}; {one['threads']} CPU threads; every system has about {one['parameters']:,} parameters."
    )
    if devices == ["CPU"]:
        note += (
            " No GPU was there. On a few CPU cores the products of one position already fill the machine, so that "
            "nothing is gained by computing all positions at once: a recurrent network with attention may be as quick "
            "as the Transformer or quicker, though its chain is longer."
        )
    return Table(f"{title}, seconds", ["device", "system", *(f"n = {n}" for n in lengths)], lines, note)


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """The chain of an update and the times, against n."""
    made = []
    systems = list(dict.fromkeys(row["system"] for row in rows))
    for what, title in COUNTED.items():
        series = _series(systems, [row for row in rows if row.get("counted") == what], "products")
        if series:
            name, label = f"products-{what}", "matrix products one after the other"
            made.append(Plot(name, f"Must wait: {title}", "n, tokens a side", label, series, log_x=True, log_y=True))
    for what, title in (("training", "An update"), ("decoding", "Greedy decoding")):
        of_kind = [row for row in rows if row.get("timed") == what]
        for device in dict.fromkeys(row["device"] for row in of_kind):
            series = _series(systems, [row for row in of_kind if row["device"] == device], "seconds")
            name = f"seconds-{what}" + ("" if device == "CPU" else "-gpu")
            made.append(
                Plot(name, f"{title} on {device}", "n, tokens a side", "seconds", series, log_x=True, log_y=True)
            )
    return made


def _series(systems: list[str], rows: Sequence[Mapping[str, Any]], value: str) -> list[Series]:
    made = []
    for system in systems:
        points = sorted((row["n"], row[value]) for row in rows if row["system"] == system)
        if points:
            made.append(Series(system, [n for n, _ in points], [y for _, y in points]))
    return made
