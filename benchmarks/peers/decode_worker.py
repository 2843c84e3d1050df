"""One side of bench_decode.py in a process of its own: decodes batches as it is told over a pipe, and says how long."""

import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from worker import Pipe


@dataclass(frozen=True)
class Search:
    """Greedy where `beams` is 1; every output has exactly `new_tokens`, none of them </s>."""

    beams: int
    new_tokens: int


class Decoder:
    """A model in one precision. Subclasses load and decode."""

    packages: tuple[str, ...] = ("torch",)

    def __init__(self, folder: str, precision: str, threads: int):
        raise NotImplementedError

    def decode(self, sources: list[list[int]], search: Search) -> list[list[int]]:
        """The new tokens of each source, whose rows have one length and end with </s>."""
        raise NotImplementedError


def serve(make: type[Decoder]) -> None:
    """Answer requests until stdin ends."""
    pipe, decoder = Pipe(), None
    for request in pipe.requests():
        try:
            if request["do"] == "setup":
                torch.set_num_threads(request["threads"])
                decoder = make(request["folder"], request["precision"], request["threads"])
                pipe.answer({"versions": {name: version(name) for name in make.packages}})
            else:
                pipe.answer(_timed(decoder, request["sources"], Search(request["beams"], request["new_tokens"])))
        except Exception as error:
            pipe.fail(error)


def _timed(decoder: Any, sources: list[list[int]], search: Search) -> dict[str, Any]:
    began = time.perf_counter()
    outputs = decoder.decode(sources, search)
    seconds = time.perf_counter() - began
    if lengths := {len(row) for row in outputs} - {search.new_tokens}:
        raise ValueError(f"outputs of {lengths} tokens where {search.new_tokens} were asked for")
    return {"seconds": seconds, "outputs": outputs}
