"""Sentence pairs as token ids in Arrow record batches: what training reads, from a file or from a stream."""

import os
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import tokenizers
from transformers import PreTrainedTokenizerBase

SCHEMA = pa.schema({"source_ids": pa.list_(pa.int32()), "target_ids": pa.list_(pa.int32()), "line": pa.int64()})


class PairEncoder:
    """Turns pairs of lines into rows of SCHEMA and drops pairs of more than `max_length` tokens a side, </s> included.

    Nothing is cut, and a special token that a line spells is text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        # Without a choice, the library warns in every data worker that is forked later; ours never tokenise.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        self._engine = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._engine.no_truncation()
        self._engine.no_padding()
        self._engine.encode_special_tokens = True
        self._max_length = max_length

    def __call__(self, sources: Sequence[str], targets: Sequence[str], first_line: int) -> pa.RecordBatch:
        """The pairs that are kept; `line` counts on from `first_line`, the dropped ones included."""
        source, target = ([code.ids for code in self._engine.encode_batch_fast(side)] for side in (sources, targets))
        longest = np.maximum([len(ids) for ids in source], [len(ids) for ids in target])
        kept = np.flatnonzero(longest <= self._max_length)
        columns = [_list_array(source, kept), _list_array(target, kept), pa.array(kept + first_line)]
        return pa.record_batch(columns, schema=SCHEMA)


def _list_array(rows: list[list[int]], kept: np.ndarray) -> pa.ListArray:
    offsets = np.cumsum([0, *(len(rows[row]) for row in kept)], dtype=np.int32)
    values = chain.from_iterable(rows[row] for row in kept)
    return pa.ListArray.from_arrays(offsets, np.fromiter(values, dtype=np.int32, count=offsets[-1]))
