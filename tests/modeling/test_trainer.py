"""transformers' Seq2SeqTrainer on our model: what it computes, saves, reloads and predicts."""

import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_models import EOS, PAD, small_model
from toy_trainer import SMOOTHINGS, one_update, toy_pairs, toy_trainer, whole_batch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_utils import set_seed

import vanilla_transformer as vt


def assert_same_update(found, expected, rtol=1e-4):
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert loss == pytest.approx(expected_loss, rel=rtol)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=rtol, atol=1e-6, msg=name)


class TestOneUpdate:
    @pytest.mark.parametrize("smoothing", SMOOTHINGS)
    @pytest.mark.parametrize(("batch", "accumulation"), [(8, 1), (1, 8), (2, 4)])
    def test_is_the_whole_batchs_whatever_the_accumulation(self, tmp_path, smoothing, batch, accumulation):
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        assert_same_update(one_update(tmp_path, smoothing, **sizes), whole_batch(smoothing))

    @pytest.mark.integration
    def test_is_the_same_on_two_processes(self, tmp_path):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        script = Path(__file__).with_name("toy_trainer.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [*launcher, script, tmp_path], env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stderr[-3000:]
        cases = torch.load(tmp_path / "cases.pt")
        assert len(cases) == len(SMOOTHINGS) * 3
        for (smoothing, _), (loss, gradients, processes) in cases.items():
            assert processes == 2
            assert_same_update((loss, gradients), whole_batch(smoothing))

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_is_the_same_with_activation_checkpointing(self, tmp_path, reentrant):
        """With dropout, whose second draw in the backward pass must be the first; each layer is computed twice."""
        calls = []

        def update(**arguments):
            set_seed(3)
            model = small_model(dropout=0.3, output_bias=True, label_smoothing=0.2)
            model.model.decoder.layers[1].feed_forward.register_forward_hook(lambda *_: calls.append(1))
            return one_update(tmp_path, "the model's", model, per_device_train_batch_size=8, **arguments)

        plain = update()
        assert len(calls) == 1
        kwargs = {"use_reentrant": reentrant}
        checkpointed = update(gradient_checkpointing=True, gradient_checkpointing_kwargs=kwargs)
        assert len(calls) == 3
        assert_same_update(checkpointed, plain)

    @pytest.mark.integration
    @pytest.mark.parametrize("smoothing", ["the model's", "Trainer's in place of the model's"])
    def test_is_the_same_compiled(self, tmp_path, smoothing):
        """By torch's tracing of forward and backward; what an inductor makes of them is not ours."""
        torch._dynamo.reset()
        arguments = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
        update = one_update(tmp_path, smoothing, per_device_train_batch_size=8, **arguments)
        assert_same_update(update, whole_batch(smoothing))

    def test_in_bfloat16_stays_near_float32(self, tmp_path):
        model = small_model(output_bias=True, label_smoothing=0.2)
        loss, gradients = one_update(tmp_path, "the model's", model, per_device_train_batch_size=8, bf16=True)
        expected_loss, expected = whole_batch("the model's")
        assert loss == pytest.approx(expected_loss, rel=1e-2)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        # bfloat16 rounds by up to 2^-9, a few times on the way.
        error = {name: (gradient - expected[name]).norm() ** 2 for name, gradient in gradients.items()}
        size = {name: gradient.norm() ** 2 for name, gradient in expected.items()}
        assert sum(error.values()) < 0.05**2 * sum(size.values())
        assert all(error[name] < 0.2**2 * size[name] for name in size if size[name] > 1e-6)


def test_evaluation_reports_the_plain_loss_of_all_target_tokens(tmp_path):
    """Trainer averages over batches by their numbers of sentences; with one batch that is the mean over its tokens."""
    model = small_model(output_bias=True, label_smoothing=0.2)
    metrics = toy_trainer(tmp_path, model, toy_pairs(), per_device_eval_batch_size=8).evaluate(toy_pairs())
    assert metrics["eval_loss"] == pytest.approx(whole_batch("none")[0], rel=1e-5)


def endless() -> vt.VanillaTransformerForConditionalGeneration:
    """A model that never gives </s>, so that only the cap ends its outputs."""
    model = small_model(output_bias=True)
    with torch.no_grad():
        model.lm_head.bias[EOS] = -1e6
    return model


class TestPredictions:
    def test_are_the_translations_in_order(self, memorised, tmp_path):
        tokenizer, pairs = memorised.tokenizer, memorised.pairs
        dataset = datasets.Dataset.from_dict(dict(tokenizer(list(pairs), text_target=list(pairs.values()))))

        def exact(prediction):
            texts = decode(prediction.predictions)
            assert decode(prediction.label_ids) == list(pairs.values())
            return {"exact": np.mean([text == target for text, target in zip(texts, pairs.values(), strict=True)])}

        def decode(ids):
            ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
            return tokenizer.batch_decode(ids, skip_special_tokens=True)

        arguments = Seq2SeqTrainingArguments(
            str(tmp_path), use_cpu=True, predict_with_generate=True, per_device_eval_batch_size=1, report_to="none"
        )
        trainer = Seq2SeqTrainer(
            memorised.model,
            arguments,
            eval_dataset=dataset,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=memorised.model),
            processing_class=tokenizer,
            compute_metrics=exact,
        )
        assert trainer.evaluate()["eval_exact"] == 1.0

    def test_end_at_input_length_plus_50_in_every_batch_and_after_saving(self, tmp_path, caplog):
        """After its first batch Trainer writes transformers' default, 20 tokens, into the model's generation config."""
        model, pairs = endless(), toy_pairs(3)
        trainer = toy_trainer(tmp_path, model, pairs, per_device_eval_batch_size=1, predict_with_generate=True)
        predictions = trainer.predict(pairs).predictions
        caps = [len(pair["input_ids"]) + 50 for pair in pairs]
        assert [int((row[1:] >= 0).sum() - (row[1:] == PAD).sum()) for row in predictions] == caps

        trainer.save_model(tmp_path / "saved")
        loaded = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "saved")
        for pair, cap in zip(pairs, caps, strict=True):
            assert loaded.generate(torch.tensor([pair["input_ids"]]), num_beams=1).shape == (1, 1 + cap)
        assert "max_length" not in caplog.text


class Scores:
    """compute_metrics whose scores are known beforehand, one for each evaluation."""

    def __init__(self, *scores: float):
        self.scores = list(scores)

    def __call__(self, prediction):
        return {"score": self.scores.pop(0)}


@pytest.mark.parametrize("sharing", ["all", "decoder", "none"])
def test_the_best_model_is_back_at_the_end(tmp_path, sharing):
    model = small_model(embedding_sharing=sharing)
    trainer = toy_trainer(
        tmp_path,
        model,
        toy_pairs(),
        max_steps=4,
        learning_rate=0.01,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        more={"eval_dataset": toy_pairs(2), "compute_metrics": Scores(1, 3, 2, 0)},
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    best = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "checkpoint-2").state_dict()
    last = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert all(torch.equal(weight, best[name]) for name, weight in model.state_dict().items())
    assert not any(torch.equal(weight, best[name]) for name, weight in last.items())
    source, target = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    assert (source.data_ptr() == target.data_ptr()) == (sharing == "all")
    assert (model.lm_head.weight.data_ptr() == target.data_ptr()) == (sharing != "none")


def test_a_resumed_run_is_the_same_bit_by_bit(tmp_path):
    """With dropout, stopped inside an epoch: 20 pairs are 5 updates of 4."""

    def run(folder, resume=None, **arguments):
        set_seed(1)
        trainer = toy_trainer(
            folder,
            small_model(dropout=0.2),
            toy_pairs(20),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            save_strategy="steps",
            save_steps=3,
            **arguments,
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run(tmp_path / "whole", max_steps=6)
    resumed = run(tmp_path / "parts", str(tmp_path / "whole" / "checkpoint-3"), max_steps=6)
    assert resumed.state.global_step == 6
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name
    for found, expected in zip(
        resumed.optimizer.state_dict()["state"].values(), whole.optimizer.state_dict()["state"].values(), strict=True
    ):
        assert all(torch.equal(found[name], expected[name]) for name in ("exp_avg", "exp_avg_sq"))
    assert [row["loss"] for row in resumed.state.log_history[-4:-1]] == [
        row["loss"] for row in whole.state.log_history[-4:-1]
    ]


def test_batches_by_length_hold_every_pair_once_with_little_padding(tmp_path):
    pairs = datasets.Dataset.from_list(toy_pairs(64))
    padding, seen = {}, []
    for strategy in ("random", "group_by_length"):
        trainer = toy_trainer(
            tmp_path, small_model(), pairs, train_sampling_strategy=strategy, per_device_train_batch_size=8
        )
        batches = list(trainer.get_train_dataloader())
        padding[strategy] = sum(batch["input_ids"].eq(PAD).sum().item() for batch in batches)
        seen = [tuple(row[row != PAD].tolist()) for batch in batches for row in batch["input_ids"]]
        assert sorted(seen) == sorted(tuple(ids) for ids in pairs["input_ids"])
    assert padding["group_by_length"] < 0.7 * padding["random"]
    trainer.train()
    assert trainer.state.global_step == 1
