import numpy as np
import pytest
import torch
from accelerate import Accelerator
from toy_training import PAD

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.batching import collate
from vanilla_transformer.training.memory import Piece, is_out_of_memory, split

# Sources of 2, 3, 5, 6 and 4 tokens, targets of 4, 2, 3, 5 and 7.
LENGTHS = ((2, 4), (3, 2), (5, 3), (6, 5), (4, 7))


def piece(*lengths):
    rows = [{"source_ids": list(range(4, 4 + s)), "target_ids": list(range(4, 4 + t))} for s, t in lengths]
    return Piece(3, collate(rows, PAD), np.arange(11, 11 + len(lengths)))


def test_what_the_cpus_allocator_says_is_recognised():
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(real.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError("std::bad_alloc"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("std::bad_alloc"))


def test_halves_hold_every_pair_once_without_the_others_padding():
    first, second = piece(*LENGTHS).halves()
    assert (first.part, second.part) == (3, 3)
    assert (first.lines.tolist(), second.lines.tolist()) == ([11, 12], [13, 14, 15])
    for half, lengths in ((first, LENGTHS[:2]), (second, LENGTHS[2:])):
        for name, values in piece(*lengths).batch.items():  # as if they had been a batch from the start
            assert torch.equal(half.batch[name], values), name
    assert (first.size, second.size) == (2 * 3 + 2 * 4, 3 * 6 + 3 * 7)


def test_a_pair_and_an_empty_part_have_no_halves():
    pair, nothing = piece((2, 4)), Piece(0, None, np.array([], dtype=np.int64))
    assert pair.halves() == [pair]
    assert nothing.halves() == [nothing] and nothing.size == 0


def test_what_is_no_smaller_than_the_piece_that_failed_is_split_with_it():
    small, failed, large = piece((2, 2), (2, 2)), piece((3, 3), (3, 3)), piece((4, 4), (4, 4))
    pieces, lines = split(Accelerator(cpu=True), [small, failed, large], failed)
    assert [len(part.lines) for part in pieces] == [2, 1, 1, 1, 1]
    assert pieces[0] is small
    assert [found.tolist() for found in lines] == [[11, 12]]


def test_a_single_pair_that_does_not_fit_ends_the_run_and_is_named():
    failed = piece((50, 50))
    with pytest.raises(UserError, match="single pair, line 11 .*activation_checkpointing.*data.max_length"):
        split(Accelerator(cpu=True), [failed], failed)
