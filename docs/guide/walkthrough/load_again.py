"""Score a model from the Hub where vanilla-transformer is not installed, with sacreBLEU itself."""

from importlib.util import find_spec

import sacrebleu
from datasets import load_dataset
from transformers import pipeline

assert find_spec("vanilla_transformer") is None

test = load_dataset("json", data_files="test.jsonl", split="train")
translator = pipeline("translation", model="bob/home-en-de-fine-tuned", trust_remote_code=True)
hypotheses = [result["translation_text"] for result in translator(test["en"], batch_size=32)]
metric = sacrebleu.BLEU()
print(f"BLEU {metric.corpus_score(hypotheses, [list(test['de'])]).score:.2f}  {metric.get_signature()}")
for source, translation in list(zip(test["en"], hypotheses, strict=True))[:5]:
    print(f"{source} -> {translation}")
