import json
import math
import os
import signal

import datasets
import numpy as np
import pytest
import torch
from toy_training import PAD, toy_loop, toy_model, toy_pairs

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.batching import collate, plan_epoch
from vanilla_transformer.training.checkpoint import TrainerState, begin_or_continue, load_optimizer, newest_whole
from vanilla_transformer.training.loop import Loop
from vanilla_transformer.training.optimizer import load_optimizer_tensors
from vanilla_transformer.training.recipe import TokenizerConfig
from vanilla_transformer.training.schedule import lr_at
from vanilla_transformer.training.stopping import Preempted
from vanilla_transformer.training.streaming import StreamedPairs
from vanilla_transformer.training.token_columns import pair_lengths
from vanilla_transformer.training.tokenizer import train_tokenizer


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_clock(rows):
    return [{name: value for name, value in row.items() if name != "tokens_per_second"} for row in rows]


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def plain_model(loop):
    return loop.accelerator.unwrap_model(loop.model)


def resumed(folder, **arguments) -> Loop:
    """The loop that --resume makes: a new model with the newest checkpoint's weights, optimiser and state."""
    model = toy_model(seed=99, **arguments.pop("fields", {}))
    source, _ = newest_whole(folder / "checkpoints")
    state = begin_or_continue(source, model, "", arguments.get("gradient_accumulation_steps", 1), 1)
    loop = toy_loop(folder, model, state=state, **arguments)
    if source:
        load_optimizer_tensors(loop.model, loop.optimizer, load_optimizer(source))
    return loop


def test_an_update_is_one_step_of_adam_on_the_whole_batch(tmp_path):
    # The same three updates from the definitions: smoothed cross-entropy from the logits, mean over all target tokens
    # of the update, Adam (Kingma and Ba 2015, algorithm 1) with the paper's constants, the paper's schedule. float64.
    torch.set_default_dtype(torch.float64)
    try:
        model = toy_model(dropout=0.0)
        loop = toy_loop(tmp_path, toy_model(dropout=0.0), max_steps=3, gradient_accumulation_steps=3)
        loop.train()
    finally:
        torch.set_default_dtype(torch.float32)
    pairs = toy_pairs()
    plan = plan_epoch(*pair_lengths(pairs), 60, 60, seed=1, epoch=1, parts=1)
    parameters, losses = list(model.parameters()), []
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    model.eval()  # no smoothing of its own; there is no dropout to switch off
    for step in (1, 2, 3):
        batch = collate([pairs[int(row)] for row in plan[step - 1][0]], PAD)
        log_p = model(**batch).logits.log_softmax(-1)[batch["labels"] >= 0]
        labels = batch["labels"][batch["labels"] >= 0]
        smoothed = 0.9 * log_p.gather(1, labels[:, None])[:, 0] + 0.1 * log_p.mean(-1)
        loss = -smoothed.mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
                m.copy_(0.9 * m + 0.1 * g)
                v.copy_(0.98 * v + 0.02 * g * g)
                m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.98**step)
                p -= lr_at(step, 16, 4) * m_hat / (v_hat.sqrt() + 1e-9)
    assert [row["loss"] for row in rows(tmp_path)] == pytest.approx(losses, rel=1e-6)
    torch.testing.assert_close(weights(plain_model(loop)), weights(model), rtol=1e-6, atol=1e-8)


def test_accumulation_changes_memory_and_not_the_update(tmp_path):
    loops = {}
    for parts in (1, 4):
        torch.set_default_dtype(torch.float64)
        try:
            model = toy_model(dropout=0.0)
        finally:
            torch.set_default_dtype(torch.float32)
        loops[parts] = toy_loop(tmp_path / f"{parts}", model, gradient_accumulation_steps=parts)
        loops[parts].train()
    one, four = rows(tmp_path / "1"), rows(tmp_path / "4")
    assert len(one) == len(four) == 6
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert [row[name] for row in one] == pytest.approx([row[name] for row in four], rel=1e-6)
    torch.testing.assert_close(weights(plain_model(loops[1])), weights(plain_model(loops[4])), rtol=1e-9, atol=1e-10)


def test_more_parts_than_pairs_leave_the_update_as_it_is(tmp_path):
    pairs = toy_pairs(count=3)
    for parts in (1, 8):
        toy_loop(
            tmp_path / f"{parts}", toy_model(dropout=0.0), pairs, max_steps=2, gradient_accumulation_steps=parts
        ).train()
    assert [row["loss"] for row in rows(tmp_path / "1")] == pytest.approx(
        [row["loss"] for row in rows(tmp_path / "8")], rel=1e-5
    )


@pytest.mark.parametrize(("stop", "precision"), [(1, "float32"), (5, "bfloat16"), (9, "float32")])
def test_a_run_continued_from_a_checkpoint_is_the_run_that_never_stopped(tmp_path, stop, precision):
    # Dropout, several parts, and epochs of a few updates, so that stops fall inside and between them.
    config = {"gradient_accumulation_steps": 2, "save_every": 1, "precision": precision}
    toy_loop(tmp_path / "whole", max_steps=12, **config).train()
    toy_loop(tmp_path / "cut", max_steps=stop, **config).train()
    torch.manual_seed(12345)
    loop = resumed(tmp_path / "cut", max_steps=12, **config)
    assert loop.state.step == stop
    loop.train()
    assert without_clock(rows(tmp_path / "whole")) == without_clock(rows(tmp_path / "cut"))
    whole, cut = (newest_whole(tmp_path / name / "checkpoints")[0] for name in ("whole", "cut"))
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / file).read_bytes() == (cut / file).read_bytes()


def test_every_pair_is_seen_once_an_epoch_and_epochs_end_the_run(tmp_path):
    loop = toy_loop(tmp_path, max_steps=1000, max_epochs=2)
    assert loop.train() == "max_epochs"
    source, target = pair_lengths(toy_pairs())
    assert (loop.state.source_tokens, loop.state.target_tokens) == (2 * source.sum(), 2 * target.sum())
    assert [row["epoch"] for row in rows(tmp_path)] == sorted(row["epoch"] for row in rows(tmp_path))
    assert rows(tmp_path)[-1]["epoch"] == 2
    assert (tmp_path / "checkpoints" / f"step-{loop.state.step}").exists()


def test_a_streamed_corpus_is_resumed_within_an_epoch(tmp_path):
    words = [f"w{i}" for i in range(20)]
    lines = [" ".join(words[(i * 7 + j) % 20] for j in range(2 + i % 7)) for i in range(120)]
    tokenizer = train_tokenizer(lines, TokenizerConfig(type="words"))

    def pairs():
        rows = [{"translation": {"a": line, "b": line}} for line in lines]
        stream = datasets.IterableDataset.from_generator(lambda: iter(rows))
        return StreamedPairs(stream, ("a", "b"), tokenizer, max_length=50, buffer_pairs=50)

    config = {"max_source_tokens": 120, "max_target_tokens": 120, "save_every": 1}
    size = {"vocab_size": len(tokenizer)}
    toy_loop(tmp_path / "whole", toy_model(**size), pairs(), max_steps=12, **config).train()
    toy_loop(tmp_path / "cut", toy_model(**size), pairs(), max_steps=5, **config).train()
    loop = resumed(tmp_path / "cut", fields=size, pairs=pairs(), max_steps=12, **config)
    assert loop.state.cursor["pairs"] > 0 and loop.state.epoch == 1
    loop.train()
    assert loop.state.epoch == 2
    assert without_clock(rows(tmp_path / "whole")) == without_clock(rows(tmp_path / "cut"))


def test_a_corpus_that_shrank_is_not_waited_for(tmp_path):
    state = TrainerState(update=1000)
    with pytest.raises(UserError, match="ended before update 1000 of epoch 1"):
        toy_loop(tmp_path, state=state).train()


def test_minutes_end_the_run_and_count_over_sessions(tmp_path):
    assert toy_loop(tmp_path, max_steps=1000, max_minutes=1e-9).train() == "max_minutes"
    assert len(rows(tmp_path)) == 1
    assert resumed(tmp_path, max_steps=1000, max_minutes=1e-9).train() == "max_minutes"
    assert len(rows(tmp_path)) == 1


def test_rows_follow_log_every_and_hold_that_updates_loss(tmp_path):
    toy_loop(tmp_path / "all", max_steps=7).train()
    toy_loop(tmp_path / "third", max_steps=7, log_every=3).train()
    every, third = rows(tmp_path / "all"), rows(tmp_path / "third")
    assert [row["step"] for row in third] == [3, 6]
    assert without_clock(third) == without_clock([every[2], every[5]])
    assert [row["learning_rate"] for row in every] == [lr_at(step, 16, 4) for step in range(1, 8)]


def test_the_best_model_is_kept_and_patience_ends_the_run(tmp_path):
    scores = iter([3.0, 2.0, 2.5, 2.2, 1.0])
    loop = toy_loop(
        tmp_path,
        validate=lambda model: {"validation_loss": next(scores)},
        max_steps=100,
        eval_every=2,
        patience=2,
        early_stopping_metric="loss",
    )
    assert loop.train() == "patience"
    assert loop.state.step == 8
    assert json.loads((tmp_path / "best" / "manifest.json").read_text())["step"] == 4
    assert [row.get("validation_loss") for row in rows(tmp_path)] == [None, 3.0, None, 2.0, None, 2.5, None, 2.2]


def test_bleu_is_the_higher_the_better_and_its_first_equal_stays(tmp_path):
    scores = iter([10.0, 12.0, 12.0])
    loop = toy_loop(
        tmp_path, validate=lambda model: {"validation_loss": 1.0, "validation_bleu": next(scores)}, eval_every=2
    )
    loop.train()
    assert (loop.state.best_step, loop.state.best_score) == (4, 12.0)


def test_the_end_is_validated_and_the_model_trains_on_after_a_validation(tmp_path):
    modes = []

    def validate(model):
        model.eval()
        return {"validation_loss": 1.0}

    loop = toy_loop(tmp_path, validate=validate, max_steps=5, eval_every=2)
    loop.model.register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    loop.train()
    assert [row["step"] for row in rows(tmp_path) if "validation_loss" in row] == [2, 4, 5]
    assert all(modes)


def test_a_signal_saves_at_the_next_boundary_and_the_run_goes_on_exactly(tmp_path):
    config = {"max_steps": 8, "eval_every": 2, "early_stopping_metric": "loss"}
    toy_loop(tmp_path / "whole", validate=lambda model: {"validation_loss": 1.0}, **config).train()

    loop = toy_loop(tmp_path / "cut", validate=lambda model: {"validation_loss": 1.0}, **config)
    loop.model.register_forward_pre_hook(
        lambda module, inputs: os.kill(os.getpid(), signal.SIGTERM) if loop.state.step == 4 else None
    )
    with pytest.raises(Preempted, match="after step 4.*--resume") as stopped:
        loop.train()
    assert stopped.value.exit_code == 75
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert [row["step"] for row in rows(tmp_path / "cut")] == [1, 2, 3]  # row 4 waits for its validation
    resumed(tmp_path / "cut", validate=lambda model: {"validation_loss": 1.0}, **config).train()
    assert without_clock(rows(tmp_path / "whole")) == without_clock(rows(tmp_path / "cut"))


def poison(loop, steps):
    """Make the gradient infinite in the given steps."""
    parameter = next(parameter for parameter in loop.model.parameters())
    parameter.register_hook(lambda grad: grad * math.inf if loop.state.step in steps else grad)


def test_an_update_that_is_not_finite_is_skipped_counted_and_named(tmp_path):
    loop = toy_loop(tmp_path, max_steps=3, log_every=100)
    before = {}
    poison(loop, {2})
    loop.model.register_forward_pre_hook(
        lambda module, inputs: before.update({loop.state.step: weights(module).clone()})
    )
    loop.train()
    assert torch.equal(before[2], before[3]) and not torch.equal(before[1], before[2])
    (row,) = rows(tmp_path)
    plan = plan_epoch(*pair_lengths(toy_pairs()), 60, 60, seed=1, epoch=1, parts=1)
    assert (row["step"], row["loss"], row["skipped"]) == (2, None, 1)
    assert row["lines"] == [int(index) + 1 for index in np.concatenate(plan[1])]
    assert loop.state.skipped == 1 and loop.state.skipped_in_a_row == 0


def test_a_run_that_only_skips_stops_and_keeps_its_last_checkpoint(tmp_path):
    loop = toy_loop(tmp_path, max_steps=100, save_every=4)
    poison(loop, range(6, 101))
    with pytest.raises(UserError, match="20 updates in a row.*step 25;.*lower training.learning_rate"):
        loop.train()
    assert newest_whole(tmp_path / "checkpoints")[0].name == "step-24"


def test_gradients_are_clipped_only_if_asked(tmp_path):
    seen = {}
    for limit in (None, 0.01):
        loop = toy_loop(tmp_path / f"{limit}", max_steps=1, max_grad_norm=limit)
        loop.train()
        norms = [p.grad.norm() for p in plain_model(loop).parameters()]
        seen[limit] = (rows(tmp_path / f"{limit}")[0]["gradient_norm"], torch.stack(norms).norm().item())
    assert seen[None][0] == pytest.approx(seen[None][1], rel=1e-5)
    assert seen[0.01] == pytest.approx((seen[None][0], 0.01), rel=1e-3)


def test_activation_checkpointing_and_data_workers_change_nothing(tmp_path):
    toy_loop(tmp_path / "plain", max_steps=3).train()
    model = toy_model()
    model.activation_checkpointing_enable({"use_reentrant": False})
    toy_loop(tmp_path / "other", model, max_steps=3, num_workers=2).train()
    assert without_clock(rows(tmp_path / "plain")) == without_clock(rows(tmp_path / "other"))
