"""Two vocabularies as one: every token finds its row, and what only the source has is never written."""

import torch

from vanilla_transformer.modeling.converters.joint_vocabulary import JointVocabulary


def test_numbers_of_both_sides():
    joint = JointVocabulary.of(["<unk>", "</s>", "cat", "dog"], ["<unk>", "</s>", "Hund", "cat"])
    assert joint.tokens == ["<unk>", "</s>", "cat", "dog", "Hund"]
    assert (joint.source, joint.target, joint.is_shared) == ([0, 1, 2, 3], [0, 1, 4, 2], False)


def test_one_vocabulary_stays_as_it_is():
    joint = JointVocabulary.of(["a", "b"], ["a", "b"])
    assert joint.is_shared
    rows = torch.tensor([[1.0], [2.0]])
    assert joint.source_rows(rows).tolist() == joint.target_rows(rows).tolist() == rows.tolist()
    # The same words in another order are not one vocabulary: their rows are not either.
    assert not JointVocabulary.of(["a", "b"], ["b", "a"]).is_shared


def test_rows_and_probabilities():
    joint = JointVocabulary.of(["a", "b"], ["c", "a"])
    rows = torch.tensor([[3.0], [1.0]])  # c, a
    assert joint.target_rows(rows).flatten().tolist() == [1.0, 0.0, 3.0]
    logits = joint.target_rows(rows).flatten() + joint.output_bias(torch.tensor([0.5, -0.5]))
    alone = torch.tensor([3.5, 0.5]).softmax(-1)
    probabilities = logits.softmax(-1)
    assert probabilities[[2, 0]].tolist() == alone.tolist()  # to the last digit
    assert probabilities[1] < 1e-40
