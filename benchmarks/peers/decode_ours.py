"""This package: generate of a model that load_model has loaded; "packed once" is inside weights_unchanged."""

from contextlib import nullcontext

import torch
from decode_worker import Decoder, Search, serve

from vanilla_transformer.training.saved_model import load_model


class Ours(Decoder):
    packages = ("torch", "transformers")

    def __init__(self, folder: str, precision: str, threads: int):
        precision, _, packed = precision.partition(" ")
        self._model, _ = load_model(f"{folder}/ours", device="cpu", precision=precision)
        (self._model.weights_unchanged() if packed else nullcontext()).__enter__()  # for as long as this process lives

    def decode(self, sources: list[list[int]], search: Search) -> list[list[int]]:
        lengths = {"min_new_tokens": search.new_tokens, "max_new_tokens": search.new_tokens}
        options = {"early_stopping": False, "length_penalty": 1.0} if search.beams == 1 else {}
        outputs = self._model.generate(torch.tensor(sources), num_beams=search.beams, **lengths, **options)
        return outputs[:, 1:].tolist()


serve(Ours)
