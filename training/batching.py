"""Which pairs make an update, in which order, and the padded tensors of one process.

The paper (section 5.1) batches pairs "by approximate sequence length", about 25,000 source and 25,000 target tokens
each. Here an *update* is the unit: everything that one optimiser step sees, over all processes and all accumulated
micro-batches. `plan_epoch` is a pure function of the lengths, the budgets, the seed and the epoch, so a run can be
continued at any update, with any number of processes and workers. Only afterwards is an update cut into `parts`
micro-batches; part p belongs to process p % world_size, which meets it as its micro-batch number p // world_size.
"""

import atexit
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader

from vanilla_transformer.configuration.errors import CorpusError, UsageError
from vanilla_transformer.training.token_columns import TokenColumn, without_indices

# Pairs are grouped by the longer side in steps of half an update, then by which side is the longer one, with up to two
# tokens of noise. Measured on Multi30k at 4,096 tokens: 4.8 % padding, updates 91 % full. Sorting by the sum of both
# lengths gives 20 % and 77 %; coarser steps leave the long sentences badly sorted.
STRIPE_UPDATES = 0.5
NOISE_TOKENS = 2.0

IGNORED_LABEL = -100


@dataclass(frozen=True)
class EpochPlan:
    """One epoch as a list of updates, each a list of `parts` arrays of dataset rows, some of them empty.

    `rows[bounds[u, p] : bounds[u, p + 1]]` are the rows of part p of update u; `plan[u]` gives all parts of u.
    Tokens include the end token. `source_tokens` and `target_tokens` count the real ones of each update, the latter the
    divisor of a loss per token; `padded_*` count what the parts hold, each padded to its own longest sentence.
    """

    rows: np.ndarray
    bounds: np.ndarray
    source_tokens: np.ndarray
    target_tokens: np.ndarray
    padded_source_tokens: np.ndarray
    padded_target_tokens: np.ndarray
    over_budget: np.ndarray  # rows left out since a single side is longer than a whole update may be

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, update: int) -> list[np.ndarray]:
        edges = self.bounds[update]
        return [self.rows[start:end] for start, end in zip(edges[:-1], edges[1:], strict=True)]

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return (self[update] for update in range(len(self)))

    @property
    def parts(self) -> int:
        return self.bounds.shape[1] - 1

    @property
    def counters(self) -> dict[str, int]:
        """Pairs and tokens for the manifest; `pairs` is `planned` plus `over_budget`."""
        return {
            "pairs": len(self.rows) + len(self.over_budget),
            "planned": len(self.rows),
            "over_budget": len(self.over_budget),
            "updates": len(self),
            "source_tokens": int(self.source_tokens.sum()),
            "target_tokens": int(self.target_tokens.sum()),
            "padded_source_tokens": int(self.padded_source_tokens.sum()),
            "padded_target_tokens": int(self.padded_target_tokens.sum()),
        }

    @property
    def padding(self) -> float:
        """The share of pads among all positions of both sides, 0 to 1."""
        padded = self.padded_source_tokens.sum() + self.padded_target_tokens.sum()
        return float(1 - (self.source_tokens.sum() + self.target_tokens.sum()) / padded)


def plan_epoch(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_source_tokens: int,
    max_target_tokens: int,
    seed: int,
    epoch: int,
    parts: int = 1,
) -> EpochPlan:
    """Put every pair into one update whose padded size, both sides, stays within the budgets.

    Lengths are in tokens with the end token, one of each per dataset row. The budgets hold for an update padded as a
    whole, so they hold for any number of parts, and what an update contains does not depend on `parts`.

    Raises CorpusError where there is no pair and UsageError where none fits the budgets.
    """
    if not len(source_lengths):
        raise CorpusError("The training corpus holds no sentence pair.")
    source = np.asarray(source_lengths, dtype=np.int64)
    target = np.asarray(target_lengths, dtype=np.int64)
    fits = (source <= max_source_tokens) & (target <= max_target_tokens)
    kept, over_budget = np.flatnonzero(fits), np.flatnonzero(~fits)
    if not len(kept):
        raise UsageError(
            f"training.max_source_tokens = {max_source_tokens} and training.max_target_tokens = {max_target_tokens}: "
            f"no training pair fits; the shortest one needs {int(np.maximum(source, target).min())} tokens on a side."
        )
    random = np.random.default_rng([seed, epoch])
    order = _by_length(source[kept], target[kept], max_source_tokens, max_target_tokens, random)
    kept = kept[order]
    source, target = source[kept], target[kept]
    edges = _cut(source, target, max_source_tokens, max_target_tokens)

    # One sort puts the updates in their random order and, inside each, the short pairs before the long ones,
    # so that the parts of an update are again of one length each.
    position = np.argsort(np.argsort(random.random(len(edges) - 1), kind="stable"))
    update_of_row = np.repeat(position, np.diff(edges))
    order = _sorted_within(update_of_row, source + target)
    kept, source, target = kept[order], source[order], target[order]
    sizes = np.bincount(update_of_row, minlength=len(edges) - 1)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    bounds = _split(source + target, starts, parts)
    return EpochPlan(
        rows=kept,
        bounds=bounds,
        source_tokens=np.add.reduceat(source, starts[:-1]),
        target_tokens=np.add.reduceat(target, starts[:-1]),
        padded_source_tokens=_padded(source, bounds),
        padded_target_tokens=_padded(target, bounds),
        over_budget=over_budget,
    )


def _by_length(
    source: np.ndarray, target: np.ndarray, max_source: int, max_target: int, random: np.random.Generator
) -> np.ndarray:
    """The order in which neighbours pad well: a serpentine through stripes of equal need of budget."""
    # One pair's share of its tighter budget, scaled to exact integers.
    need = np.maximum(source * max_target, target * max_source)
    by_need = np.argsort(_narrow(need // math.gcd(max_source, max_target)), kind="stable")
    starts = np.flatnonzero(np.diff(need[by_need], prepend=-1))
    levels, count = need[by_need[starts]], np.diff(starts, append=len(need))
    updates = np.cumsum(count * levels / (max_source * max_target))
    stripe_of_level = ((updates - updates[0]) / STRIPE_UPDATES + random.random()).astype(np.int64)
    stripe = np.empty(len(need), dtype=np.int64)
    stripe[by_need] = np.repeat(stripe_of_level, count)
    lead = source * max_target - target * max_source
    lead = lead + NOISE_TOKENS * max(max_source, max_target) * random.random(len(source))
    # Every other stripe runs backwards, so that an update which spans two of them still holds pairs alike.
    return _sorted_within(stripe, np.where(stripe % 2, -lead, lead))


def _sorted_within(first: np.ndarray, then: np.ndarray) -> np.ndarray:
    """The order by `first` and, where that is equal, by `then`: np.lexsort((then, first)) in less time."""
    order = np.argsort(_narrow(then), kind="stable")
    return order[np.argsort(_narrow(first)[order], kind="stable")]


def _narrow(values: np.ndarray) -> np.ndarray:
    """The same numbers in 16 bits, if they are whole and fit: numpy sorts those by counting, in linear time."""
    whole = np.issubdtype(values.dtype, np.integer)
    return values.astype(np.uint16) if whole and values.min() >= 0 and values.max() < 2**16 else values


def _cut(source: np.ndarray, target: np.ndarray, max_source: int, max_target: int) -> np.ndarray:
    """Edges of consecutive updates, each as large as the budgets of padded tokens allow."""
    edges, start, end = [0], 0, len(source)
    while start < end:
        # An update holds at most budget / first length pairs, which bounds the window to look at.
        window = slice(start, start + min(max_source // source[start], max_target // target[start]))
        count = np.arange(1, len(source[window]) + 1)
        fits = (count * np.maximum.accumulate(source[window]) <= max_source) & (
            count * np.maximum.accumulate(target[window]) <= max_target
        )
        start += len(fits) if fits.all() else int(np.argmin(fits))
        edges.append(start)
    if len(edges) > 2:
        # The remainder may be a single pair, a poor estimate of the gradient: share what the last two updates hold.
        first, last = edges[-3], edges[-1]
        count = np.arange(last - first, 0, -1)
        fits = (count * np.maximum.accumulate(source[first:last][::-1])[::-1] <= max_source) & (
            count * np.maximum.accumulate(target[first:last][::-1])[::-1] <= max_target
        )
        half = (last - first + 1) // 2
        edges[-2] = min(edges[-2], first + half + int(np.argmax(fits[half:])))
    return np.array(edges)


def _split(cost: np.ndarray, starts: np.ndarray, parts: int) -> np.ndarray:
    """Bounds (updates, parts + 1) of parts of near-equal cost; none is empty while there are pairs enough."""
    total = np.concatenate([[0], np.cumsum(cost)])
    first, last = starts[:-1, None], starts[1:, None]
    share = np.arange(parts + 1)
    wanted = total[first] + (total[last] - total[first]) * share / parts
    # A pair belongs to the part that its middle falls into.
    bounds = np.searchsorted(total[:-1] + cost / 2, wanted)
    bounds = np.clip(bounds, first + share, last - parts + share)
    return np.where(last - first >= parts, bounds, np.minimum(first + share, last))


def _padded(lengths: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Padded tokens of each update (updates,), every part padded to its own longest sentence."""
    sizes = np.diff(bounds, axis=1)
    longest = np.zeros(sizes.shape, dtype=np.int64)
    filled = sizes > 0  # empty parts would make reduceat return a neighbour's length
    longest[filled] = np.maximum.reduceat(lengths, bounds[:, :-1][filled])
    return (sizes * longest).sum(axis=1)


class Update(NamedTuple):
    """What one process needs for one optimiser step."""

    number: int  # place in the epoch, from 0
    batches: list[dict[str, torch.Tensor] | None]  # this process's micro-batches; None where its part is empty
    batch_lines: list[np.ndarray]  # corpus line of every pair of each of them
    target_tokens: int  # real target tokens of the whole update over all processes: the divisor of the loss
    source_tokens: int
    lines: np.ndarray  # corpus line of every pair of the whole update, to name the culprit of a bad one
    last: bool  # whether the epoch ends with it
    cursor: dict[str, Any] | None = None  # of a stream: where to read on from, instead of from the start


def tensors(source: np.ndarray, target: np.ndarray, source_lengths: np.ndarray) -> dict[str, torch.Tensor]:
    """The model's inputs from padded ids: input_ids, attention_mask (B, S) and labels (B, T), -100 for pads; int64."""
    mask = (np.arange(source.shape[1]) < source_lengths[:, None]).astype(np.int64)
    return {
        "input_ids": torch.from_numpy(source),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(target),
    }


def collate(rows: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, torch.Tensor]:
    """A batch from rows with `source_ids` and `target_ids`, padded on the right; shapes as in `tensors`."""
    padded = {}
    for name, fill in (("source_ids", pad_id), ("target_ids", IGNORED_LABEL)):
        padded[name] = np.full((len(rows), max(len(row[name]) for row in rows)), fill, dtype=np.int64)
        for index, row in enumerate(rows):
            padded[name][index, : len(row[name])] = row[name]
    return tensors(padded["source_ids"], padded["target_ids"], np.array([len(row["source_ids"]) for row in rows]))


class _ProcessUpdates(torch.utils.data.Dataset):
    """The updates of a plan, seen from one process; item u is the `Update` u."""

    def __init__(self, dataset: datasets.Dataset, plan: EpochPlan, process: int, world_size: int, pad_id: int) -> None:
        self.dataset = without_indices(dataset)
        self.plan, self.process, self.world_size, self.pad_id = plan, process, world_size, pad_id
        self._columns: tuple[TokenColumn, TokenColumn, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker maps the Arrow file again; the views would be copied through the pipe.
        return {**self.__dict__, "_columns": None}

    def __getitem__(self, index: int) -> Update:
        if self._columns is None:
            lines = self.dataset.data.column("line").to_numpy()
            self._columns = TokenColumn(self.dataset, "source_ids"), TokenColumn(self.dataset, "target_ids"), lines
        source, target, lines = self._columns
        parts = self.plan[index]
        own = parts[self.process :: self.world_size]
        batches = [
            tensors(source.padded(rows, self.pad_id), target.padded(rows, IGNORED_LABEL), source.lengths[rows])
            if len(rows)
            else None
            for rows in own
        ]
        return Update(
            index,
            batches,
            [lines[rows] for rows in own],
            int(self.plan.target_tokens[index]),
            int(self.plan.source_tokens[index]),
            lines[np.concatenate(parts)],
            index == len(self.plan) - 1,
        )


def micro_batches(
    dataset: datasets.Dataset,
    plan: EpochPlan,
    first_update: int = 0,
    process_index: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    *,
    pad_id: int,
) -> Iterator[Update]:
    """This process's share of every update from `first_update` on; earlier ones are not even read.

    `dataset` has the columns source_ids, target_ids and line. The sequence does not depend on `num_workers`, and the
    global random state of torch is left alone, so that dropout after a resume is what it would have been.
    """
    if plan.parts % world_size:
        raise ValueError(f"{plan.parts} parts cannot be shared evenly by {world_size} processes")
    loader = DataLoader(
        _ProcessUpdates(dataset, plan, process_index, world_size, pad_id),
        batch_size=None,
        sampler=range(first_update, len(plan)),
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        # Without its own generator a loader draws a seed for its workers from the global one.
        generator=torch.Generator(),
        worker_init_fn=_leave_signals_to_the_main_process,
    )
    updates = iter(loader)
    if num_workers:
        _with_workers.add(updates)
    return updates


_with_workers: WeakSet[Any] = WeakSet()


@atexit.register
def _end_workers() -> None:
    """Ends the workers of whoever still holds an iterator when Python ends.

    Python's own way is SIGTERM and then to wait, and the workers leave SIGTERM to others. Registered after Python's,
    which came with torch, this is called before it.
    """
    for updates in list(_with_workers):
        updates._shutdown_workers()


def _leave_signals_to_the_main_process(worker: int) -> None:
    """A scheduler signals all processes of a job; workers end with the one they belong to, after its checkpoint."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
