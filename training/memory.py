"""A batch that the memory does not hold: recognised, and split in two until its parts fit."""

import gc
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.batching import IGNORED_LABEL
from vanilla_transformer.training.processes import said_once

# What allocators say that have no exception of their own: torch's for the CPU, C++'s, Apple's, cuBLAS's.
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "bad_alloc", "MPS backend out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Piece:
    """What one forward and backward pass computes: a micro-batch, or what splitting has left of one."""

    part: int  # number of its micro-batch within the update, over all processes
    batch: dict[str, torch.Tensor] | None  # as in batching.Update
    lines: np.ndarray  # corpus line of each of its pairs

    @property
    def size(self) -> int:
        """Padded tokens of both sides."""
        return 0 if self.batch is None else self.batch["input_ids"].numel() + self.batch["labels"].numel()

    def halves(self) -> list["Piece"]:
        """The same pairs as two pieces, each without the padding that only the other needs."""
        if self.batch is None or len(self.lines) == 1:
            return [self]
        middle = len(self.lines) // 2
        found = []
        for rows in (slice(middle), slice(middle, None)):
            half = {name: values[rows] for name, values in self.batch.items()}
            source = half["attention_mask"].any(0)
            target = (half["labels"] != IGNORED_LABEL).any(0)
            columns = {"input_ids": source, "attention_mask": source, "labels": target}
            half = {name: values[:, columns[name]] for name, values in half.items()}
            found.append(Piece(self.part, half, self.lines[rows]))
        return found


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up, of the device or of the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def release(device: torch.device) -> None:
    """Give back what a failed pass has left behind; call it when its exception is gone, which holds the activations."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def split(accelerator: Accelerator, pieces: list[Piece], failed: Piece | None) -> tuple[list[Piece], list[np.ndarray]]:
    """This process's pieces after `failed` did not fit, and the lines of every piece that failed in some process.

    Halved are all pieces that are no smaller than the one that failed: they would fail next. Every process calls it
    after one has failed. Raises UserError, on all of them, where a piece of a single pair has failed.
    """
    mine = [] if failed is None else [failed.lines]
    everyones: list[np.ndarray] = gather_object(mine)
    if alone := [int(lines[0]) for lines in everyones if len(lines) == 1]:
        too_long = UserError(
            f"Out of memory on a single pair, line {alone[0]} of the training corpus. Continue with --resume and "
            "training.activation_checkpointing = true; or start a new run with a lower data.max_length, which leaves "
            "such pairs out, with training.precision = bfloat16, or with a smaller model."
        )
        raise said_once(accelerator, too_long)
    if failed is not None:
        pieces = [half for piece in pieces for half in (piece.halves() if piece.size >= failed.size else [piece])]
    return pieces, everyones
