"""Sources of the recall task: where the value stands, and that splits have no source in common."""

import numpy as np
import pytest
import torch

from vanilla_transformer.training.ladder.distance_task import SPLITS
from vanilla_transformer.training.ladder.recall_task import RecallTask

TASK = RecallTask((4, 8, 512), values=5, noise=7, most_before=6)
VALUES, NOISE = range(3, 8), range(8, 15)  # ids behind start, pad and end


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("distance", [4, 8, 512])
def test_the_answer_stands_exactly_k_tokens_before_the_last_token(split, distance):
    rng = np.random.default_rng(3)
    lengths = set()
    for _ in range(60):
        source_BS, answer_B1 = TASK.examples(split, distance, 3, rng)
        assert torch.equal(source_BS[:, -1 - distance], answer_B1[:, 0])
        # it is the only value, and whatever else there is is noise
        is_value_BS = torch.isin(source_BS, torch.tensor(VALUES))
        assert is_value_BS.sum(1).tolist() == [1, 1, 1]
        assert torch.isin(source_BS[~is_value_BS], torch.tensor(NOISE)).all()
        lengths.add(source_BS.shape[1])
    assert lengths == {distance + 1 + before for before in range(7)}
    assert max(lengths) == TASK.source_tokens(distance)
    assert TASK.vocab_size == max(NOISE) + 1


def test_every_value_is_asked_for():
    _, answer_B1 = TASK.examples("train", 4, 500, np.random.default_rng(0))
    assert set(answer_B1.flatten().tolist()) == set(VALUES)


def test_the_same_generator_gives_the_same_examples_and_another_one_others():
    def drawn(seed):
        return TASK.examples("test", 8, 20, np.random.default_rng(seed))

    assert torch.equal(drawn(1).source_BS, drawn(1).source_BS)
    assert drawn(1).source_BS.tolist() != drawn(2).source_BS.tolist()


def test_no_source_is_in_two_splits():
    # 3 values and 4^4 series of noise: 768 sources, all of which come up
    task = RecallTask((4,), values=3, noise=4, most_before=0)
    seen = {}
    for split in SPLITS:
        source_BS, _ = task.examples(split, 4, 20_000, np.random.default_rng(0))
        seen[split] = set(map(tuple, source_BS.tolist()))
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == 768
