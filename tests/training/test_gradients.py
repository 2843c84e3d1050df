import itertools
import json

import numpy as np
import pytest
import torch
from toy_training import toy_loop, toy_model, toy_pairs

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.batching import plan_epoch
from vanilla_transformer.training.gradients import part_seed
from vanilla_transformer.training.token_columns import pair_lengths


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def fail(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def limit_forward(model, pairs):
    """Make the memory too small for more than so many pairs at once: the forward pass fails in the decoder."""
    decoder = model.model.decoder
    decoder.register_forward_pre_hook(lambda module, inputs: fail() if batch_size[0] > pairs else None)
    return watch(model)


def limit_backward(model, pairs):
    """As above, but the backward pass fails when it has gone through the decoder and reaches the encoder."""

    def watch_output(module, inputs, output):
        if batch_size[0] > pairs and torch.is_grad_enabled():
            (output[0] if not torch.is_tensor(output) else output).register_hook(fail)

    model.model.encoder.register_forward_hook(watch_output)
    return watch(model)


batch_size = [0]


def watch(model):
    def note(module, arguments, named):
        batch_size[0] = len(named["input_ids"])

    model.register_forward_pre_hook(note, with_kwargs=True)
    return model


def gradients(loop):
    return {name: parameter.grad.clone() for name, parameter in loop.model.named_parameters()}


@pytest.mark.parametrize(("limit", "pairs"), list(itertools.product((limit_forward, limit_backward), (1, 2))))
def test_a_batch_that_does_not_fit_is_split_and_the_update_stays_the_same(tmp_path, limit, pairs):
    config = {"max_steps": 1, "gradient_accumulation_steps": 2}
    whole = toy_loop(tmp_path / "whole", toy_model(dropout=0.0), **config)
    cut = toy_loop(tmp_path / "cut", limit(toy_model(dropout=0.0), pairs), **config)
    whole.train()
    cut.train()
    for name, expected in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], expected, rtol=1e-5, atol=1e-7)
    (one,), (other,) = rows(tmp_path / "whole"), rows(tmp_path / "cut")
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)
    assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-5)
    assert "split_batches" not in one and other["split_batches"] == cut.state.split_batches > 0


def test_split_batches_are_counted_and_named_off_the_rhythm_of_the_log_and_warned_of_once(tmp_path, caplog):
    # Half of the pairs of an update fit, so that its one batch is split once.
    pairs = toy_pairs()
    plan = plan_epoch(*pair_lengths(pairs), 60, 60, seed=1, epoch=1, parts=1)
    sizes = [len(update[0]) for update in plan]
    assert len(set(sizes)) > 1
    loop = toy_loop(tmp_path, limit_forward(toy_model(), max(sizes) - 1), pairs, max_steps=len(plan), log_every=1000)
    loop.train()
    large = [number for number, size in enumerate(sizes) if size == max(sizes)]
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [number + 1 for number in large]
    assert [row["split_batches"] for row in found] == list(range(1, len(large) + 1))
    lines = [sorted(int(index) + 1 for index in np.concatenate(plan[number])) for number in large]
    assert [row["lines"] for row in found] == lines
    assert all(row["loss"] > 0 for row in found)
    (warning,) = [record.message for record in caplog.records if "Out of memory" in record.message]
    assert f"a batch of {max(sizes)} pairs was split" in warning and "gradient_accumulation_steps" in warning


def test_a_single_pair_that_does_not_fit_ends_the_run_and_is_named(tmp_path):
    pairs = toy_pairs(count=1)
    with pytest.raises(UserError, match="single pair, line 1 of") as stopped:
        toy_loop(tmp_path, limit_forward(toy_model(), 0), pairs).train()
    assert stopped.value.exit_code == 1


def test_another_error_is_not_taken_for_the_memorys(tmp_path):
    model = toy_model()
    model.register_forward_pre_hook(lambda module, inputs: {}["missing"])
    with pytest.raises(KeyError):
        toy_loop(tmp_path, model).train()


def test_seeds_differ_between_parts_steps_and_runs():
    seeds = [part_seed(seed, step, part) for seed in range(3) for step in range(20) for part in range(4)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
