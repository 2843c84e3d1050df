"""Fine-tune a model of this package with transformers' own trainer, on a file of your pairs, and score it.

    python docs/examples/finetune.py runs/quickstart/final pairs.tsv runs/mine

PAIRS is text in UTF-8, a pair a line: source, tab, target. The last tenth of it is held out, to choose the best model
by and to score. `vanilla-transformer finetune` does the same with more care; this is what it comes down to.
"""

import argparse

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import vanilla_transformer as vt  # makes the Auto classes know the model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model folder or Hub id")
    parser.add_argument("pairs", help="a file of source, tab, target")
    parser.add_argument("output", help="folder for checkpoints and OUTPUT/final")
    parser.add_argument("--steps", type=int, default=200, help="updates")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="Adam's, falling to 0")
    options = parser.parse_args()

    model = AutoModelForSeq2SeqLM.from_pretrained(options.model)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    target_lang = model.config.target_lang

    with open(options.pairs, encoding="utf-8", newline="\n") as file:
        pairs = [line.rstrip("\r\n").split("\t") for line in file]
    held_out = max(1, len(pairs) // 10)

    def tokenised(part: list[list[str]]) -> Dataset:
        sources, targets = zip(*part, strict=True)
        return Dataset.from_dict(dict(tokenizer(list(sources), text_target=list(targets))))

    train, dev = tokenised(pairs[:-held_out]), tokenised(pairs[-held_out:])
    bleu = vt.SignedBleu(target_lang=target_lang)

    def scores(prediction) -> dict[str, float]:
        # Rows are padded with -100, which no tokenizer knows.
        ids, labels = (np.where(rows < 0, tokenizer.pad_token_id, rows) for rows in prediction)
        texts, references = (tokenizer.batch_decode(rows, skip_special_tokens=True) for rows in (ids, labels))
        return {"bleu": bleu.compute(predictions=texts, references=references)["score"]}

    every = max(1, options.steps // 4)
    trainer = Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(
            options.output,
            max_steps=options.steps,
            learning_rate=options.learning_rate,
            per_device_train_batch_size=32,
            train_sampling_strategy="group_by_length",
            predict_with_generate=True,  # by the model's own beam search
            eval_strategy="steps",
            eval_steps=every,
            save_steps=every,
            load_best_model_at_end=True,
            metric_for_best_model="bleu",
            save_total_limit=2,
            report_to="none",
        ),
        train_dataset=train,
        eval_dataset=dev,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=scores,
    )
    before = trainer.evaluate()["eval_bleu"]
    trainer.train()
    after = trainer.evaluate()["eval_bleu"]
    trainer.save_model(f"{options.output}/final")
    print(f"BLEU of {len(dev)} held-out pairs: {before:.2f} before, {after:.2f} after")

    translator = vt.TranslationPipeline(model=model, tokenizer=tokenizer)
    for source, _ in pairs[:3]:
        print(f"{source} -> {translator(source)[0]['translation_text']}")


if __name__ == "__main__":
    main()
