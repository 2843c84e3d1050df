"""A side of multi30k_peers.py: transformers' Marian with Seq2SeqTrainer, as its run_translation example trains.

    python benchmarks/multi30k_marian.py SETTINGS.json

Model and rates are those of multi30k-published.yaml, the vocabulary is the very tokenizer of our run. The trainer
batches sentences and not tokens: as many as make about the same number of tokens an update, grouped by length. Time
counts training alone, not validation. Leaves curve.json, test2016.hypotheses.txt and system.json beside the settings.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from vanilla_transformer.training.evaluation import corpus_scores
from vanilla_transformer.training.text_files import read_lines


class Budget(TrainerCallback):
    """Validates by dev BLEU every so many updates and stops after so many minutes of training."""

    def __init__(self, settings: dict[str, Any], translate: Any):
        self._settings, self._translate = settings, translate
        self.curve: list[dict[str, float]] = []
        self.seconds, self._resumed = 0.0, time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._resumed = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        elapsed = self.seconds + time.perf_counter() - self._resumed
        over = elapsed > 60 * self._settings["minutes"]
        if over or state.global_step % self._settings["eval_every"] == 0:
            self.seconds = elapsed
            bleu = _bleu(self._translate(read_lines(self._settings["dev"][0])), read_lines(self._settings["dev"][1]))
            self.curve.append({"step": state.global_step, "minutes": elapsed / 60, "bleu": bleu})
            print(self.curve[-1], flush=True)
            self._resumed = time.perf_counter()
        control.should_training_stop = control.should_training_stop or over


def _bleu(hypotheses: list[str], references: list[str]) -> float:
    references = references[: len(hypotheses)]
    return corpus_scores(hypotheses, references, "de", ["bleu"], tokenize="none")["bleu"]["score"]


def main(path: Path) -> None:
    settings = json.loads(path.read_text(encoding="utf-8"))
    torch.manual_seed(settings["seed"])
    tokenizer = AutoTokenizer.from_pretrained(settings["tokenizer"])
    model = MarianMTModel(
        MarianConfig(
            vocab_size=len(tokenizer),
            d_model=128,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            dropout=0.3,
            attention_dropout=0.0,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            forced_eos_token_id=None,
            decoder_start_token_id=tokenizer.bos_token_id,
        )
    )
    model.generation_config.update(num_beams=5, max_length=100, length_penalty=1.0, forced_eos_token_id=None)
    sources, targets = (read_lines(file)[: settings["limit"]] for file in settings["train"])
    ids = tokenizer(sources, text_target=targets)
    data = Dataset.from_dict({"input_ids": ids["input_ids"], "labels": ids["labels"]})

    def translate(lines: list[str]) -> list[str]:
        lines = lines[: settings["dev_limit"]]
        model.eval()
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        found = [""] * len(lines)
        for first in range(0, len(lines), 64):
            part = order[first : first + 64]
            batch = tokenizer([lines[i] for i in part], padding=True, return_tensors="pt")
            with torch.inference_mode():
                texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
            for i, text in zip(part, texts, strict=True):
                found[i] = text
        model.train()
        return found

    budget = Budget(settings, translate)
    trainer = Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(
            str(path.parent / "trainer"),
            per_device_train_batch_size=settings["batch_size"],
            train_sampling_strategy="group_by_length",
            max_steps=settings["max_steps"],
            learning_rate=5e-3,
            lr_scheduler_type="inverse_sqrt",
            warmup_steps=2000,
            adam_beta1=0.9,
            adam_beta2=0.98,
            adam_epsilon=1e-9,
            max_grad_norm=0.0,
            label_smoothing_factor=0.1,
            bf16=settings["bfloat16"],
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            logging_steps=100,
            seed=settings["seed"],
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        callbacks=[budget],
    )
    trainer.train()
    hypotheses = translate(read_lines(settings["test"][0]))
    (path.parent / "test2016.hypotheses.txt").write_text("".join(f"{h}\n" for h in hypotheses), encoding="utf-8")
    (path.parent / "curve.json").write_text(json.dumps(budget.curve, indent=1), encoding="utf-8")
    system = {
        "system": f"transformers {transformers.__version__} Marian, Seq2SeqTrainer",
        "updates": trainer.state.global_step,
        "minutes": budget.seconds / 60,
        "parameters": model.num_parameters(),
    }
    (path.parent / "system.json").write_text(json.dumps(system, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
