"""CTranslate2 with the same weights, written by `convert --to ctranslate2`."""

import ctranslate2
from decode_worker import Decoder, Search, serve
from transformers import AutoTokenizer


class Engine(Decoder):
    packages = ("ctranslate2",)

    def __init__(self, folder: str, precision: str, threads: int):
        name = f"{folder}/ctranslate2"
        self._engine = ctranslate2.Translator(name, compute_type=precision, inter_threads=1, intra_threads=threads)
        self._tokenizer = AutoTokenizer.from_pretrained(name)

    def decode(self, sources: list[list[int]], search: Search) -> list[list[int]]:
        words = [self._tokenizer.convert_ids_to_tokens(row) for row in sources]
        results = self._engine.translate_batch(
            words,
            max_batch_size=len(words),
            beam_size=search.beams,
            min_decoding_length=search.new_tokens,
            max_decoding_length=search.new_tokens,
        )
        return [self._tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]


serve(Engine)
