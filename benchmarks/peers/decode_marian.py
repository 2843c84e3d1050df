"""transformers' MarianMTModel with the same weights, and transformers' own search."""

import torch
from decode_worker import Decoder, Search, serve
from transformers import MarianMTModel
from transformers.utils import logging


class Marian(Decoder):
    packages = ("torch", "transformers")

    def __init__(self, folder: str, precision: str, threads: int):
        logging.set_verbosity_error()
        kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
        self._model = MarianMTModel.from_pretrained(f"{folder}/marian", dtype=kind).eval()

    def decode(self, sources: list[list[int]], search: Search) -> list[list[int]]:
        ids = torch.tensor(sources)
        lengths = {"min_new_tokens": search.new_tokens, "max_new_tokens": search.new_tokens}
        outputs = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=search.beams,
            early_stopping=False,
            length_penalty=1.0,
            **lengths,
        )
        return outputs[:, 1:].tolist()


serve(Marian)
