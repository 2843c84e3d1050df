"""Fine-tune a model from the Hub on pairs of one's own with transformers' trainer, scored before and after."""

from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import vanilla_transformer as vt  # registers the model: no remote code is run

model = AutoModelForSeq2SeqLM.from_pretrained("alice/home-en-de", revision="v1")
tokenizer = AutoTokenizer.from_pretrained("alice/home-en-de", revision="v1")
pairs = load_dataset("json", data_files={"train": "pairs.jsonl", "test": "test.jsonl"})
print({split: len(rows) for split, rows in pairs.items()}, pairs["train"][0])


def bleu() -> str:
    translator = vt.TranslationPipeline(model=model, tokenizer=tokenizer)
    hypotheses = [result["translation_text"] for result in translator(pairs["test"]["en"], batch_size=32)]
    score = vt.corpus_scores(hypotheses, list(pairs["test"]["de"]), target_lang="de")["bleu"]
    return f"BLEU {score['score']:.2f}  {score['signature']}"


print("before:", bleu())
train = pairs["train"].map(
    lambda rows: tokenizer(rows["en"], text_target=rows["de"]), batched=True, remove_columns=["en", "de"]
)
trainer = Seq2SeqTrainer(
    model,
    Seq2SeqTrainingArguments(
        "checkpoints",
        max_steps=50,
        per_device_train_batch_size=64,
        learning_rate=5e-4,
        lr_scheduler_type="linear",
        train_sampling_strategy="group_by_length",
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=train,
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
)
trainer.train()
print("after:", bleu())

model.save_pretrained("fine-tuned")
tokenizer.save_pretrained("fine-tuned")
