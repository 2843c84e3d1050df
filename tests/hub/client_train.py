"""A user's process: transformers' Seq2SeqTrainer with push_to_hub=True on a model of ours.

Request: "model", a folder; "repo"; "pairs", source to target. Answer: the hash of the weights that were trained, and of
those that a fresh download brings.
"""

import json
import sys
import tempfile
from pathlib import Path

from client_load import weights_hash
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import vanilla_transformer  # noqa: F401

request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
model = AutoModelForSeq2SeqLM.from_pretrained(request["model"])
tokenizer = AutoTokenizer.from_pretrained(request["model"])
encoded = tokenizer([*request["pairs"]], text_target=[*request["pairs"].values()])
arguments = Seq2SeqTrainingArguments(
    "output",
    max_steps=2,
    save_steps=1,
    push_to_hub=True,
    hub_model_id=request["repo"],
    hub_private_repo=True,
    report_to="none",
    disable_tqdm=True,
)
trainer = Seq2SeqTrainer(
    model,
    arguments,
    train_dataset=Dataset.from_dict(dict(encoded)),
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
)
before = weights_hash(model)
trainer.train()
trainer.push_to_hub(dataset="six pairs")
with tempfile.TemporaryDirectory() as cache:
    loaded = AutoModelForSeq2SeqLM.from_pretrained(request["repo"], cache_dir=cache)
answer = {"before": before, "trained": weights_hash(trainer.model), "loaded": weights_hash(loaded)}
Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
