"""Batches from a corpus that is read as it comes, once an epoch, and never held whole.

The stream is cut into buffers of consecutive pairs, and each buffer is planned like an epoch of its own. So the updates
are a function of (seed, epoch, stream), whatever the number of processes, and a run goes on at any update: by reading
the stream again up to there, or at once from the cursor that every update carries.
"""

from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.configuration.errors import CorpusError, UserError
from vanilla_transformer.training.batching import Update, micro_batches, plan_epoch
from vanilla_transformer.training.redaction import redacted
from vanilla_transformer.training.token_columns import pair_lengths
from vanilla_transformer.training.token_ids import SCHEMA, PairEncoder

# About a hundred updates of the paper's size, enough for 5 % padding; some ten seconds to tokenise on one core.
BUFFER_PAIRS = 100_000


def unbroken(stream: datasets.IterableDataset) -> Iterator[dict[str, Any]]:
    """The rows of a stream; CorpusError in the place of whatever a network or a file raises on the way."""
    rows, count = iter(stream), 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except UserError:
            raise
        except Exception as error:  # each layer between here and the data has errors of its own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CorpusError(
                f"The training stream broke off after {count:,} rows ({redacted(reason)}). Check the network and the "
                "data, then continue with --resume."
            ) from error
        count += 1
        yield row


class StreamedPairs:
    """The training pairs of a stream, whose rows have a `translation` of both languages.

    `counters` tells what this process has met since it was made: pairs read, planned in updates, and dropped as too
    long for `max_length` or for the budget of an update.
    """

    def __init__(
        self,
        pairs: datasets.IterableDataset,
        langs: tuple[str, str],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        buffer_pairs: int = BUFFER_PAIRS,
    ) -> None:
        self.counters = dict.fromkeys(("read", "planned", "too_many_tokens", "over_budget"), 0)
        self._pairs, self._langs, self._buffer_pairs = pairs, langs, buffer_pairs
        self._encode = PairEncoder(tokenizer, max_length)

    def updates(
        self,
        max_source_tokens: int,
        max_target_tokens: int,
        seed: int,
        epoch: int,
        parts: int = 1,
        first_update: int = 0,
        process_index: int = 0,
        world_size: int = 1,
        *,
        pad_id: int,
        cursor: dict[str, Any] | None = None,
    ) -> Iterator[Update]:
        """As `plan_epoch` and `micro_batches` together.

        A `cursor` (JSON values) taken from an update of the same seed, epoch and budgets that is not after
        `first_update` saves reading the stream up to there; it changes nothing else. Raises CorpusError where the whole
        stream holds no pair within `max_length` and the budgets.
        """
        before = cursor["updates"] if cursor else 0
        held_back: Update | None = None  # until it is known whether the epoch ends with it
        for pairs_before, state, buffer in self._buffers(epoch, cursor):
            source, target = pair_lengths(buffer)
            if not np.any((source <= max_source_tokens) & (target <= max_target_tokens)):
                self.counters["over_budget"] += len(buffer)
                continue
            # Buffers shall not all get the same order.
            buffer_seed = int(np.random.SeedSequence([seed, pairs_before]).generate_state(1, np.uint64)[0])
            plan = plan_epoch(source, target, max_source_tokens, max_target_tokens, buffer_seed, epoch, parts)
            self.counters["planned"] += len(plan.rows)
            self.counters["over_budget"] += len(plan.over_budget)
            here = {"updates": before, "pairs": pairs_before, "stream": state}
            start = min(max(first_update - before, 0), len(plan))
            for update in micro_batches(buffer, plan, start, process_index, world_size, pad_id=pad_id):
                if held_back is not None:
                    yield held_back
                held_back = update._replace(number=before + update.number, last=False, cursor=here)
            before += len(plan)
        if held_back is not None:
            yield held_back._replace(last=True)
        if not before:
            raise CorpusError("The training stream holds no pair that fits data.max_length and the token budgets.")

    def _buffers(self, epoch: int, cursor: dict[str, Any] | None) -> Iterator[tuple[int, Any, datasets.Dataset]]:
        """Token ids of one buffer after the other, with the pairs before it and the stream's state at its start."""
        stream = self._pairs.with_format(None)  # a new object: the position set below stays ours
        stream.set_epoch(epoch)
        if cursor:
            stream.load_state_dict(deepcopy(cursor["stream"]))
        pairs_before, rows = cursor["pairs"] if cursor else 0, unbroken(stream)
        while True:
            state = deepcopy(cursor["stream"] if cursor and pairs_before == cursor["pairs"] else stream.state_dict())
            pairs = [row["translation"] for row in islice(rows, self._buffer_pairs)]
            if not pairs:
                return
            source, target = ([pair[lang] for pair in pairs] for lang in self._langs)
            batch = self._encode(source, target, pairs_before + 1)
            self.counters["read"] += len(pairs)
            self.counters["too_many_tokens"] += len(pairs) - len(batch)
            yield (
                pairs_before,
                state,
                datasets.Dataset(datasets.table.InMemoryTable(pa.Table.from_batches([batch], SCHEMA))),
            )
            pairs_before += len(pairs)
