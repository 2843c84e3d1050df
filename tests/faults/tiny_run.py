"""A run of a few seconds, on one process or several: 200 sentences to be reversed, and a model of 5,000 weights."""

import json
import random
from pathlib import Path

# Dropout, several epochs, validations and checkpoints out of step. CORPUS is a folder of pairs or a file of them.
RECIPE = """
data: {corpus: CORPUS, source_lang: fwd, target_lang: rev, drop_test_overlap: false}
tokenizer: {type: words}
model: {d_model: 16, d_ff: 32, num_heads: 2, num_encoder_layers: 1, num_decoder_layers: 1, dropout: 0.2}
training:
  {max_steps: 60, max_source_tokens: 90, max_target_tokens: 90, learning_rate: 2e-3, warmup_steps: 30, log_every: 1,
   save_every: 4, eval_every: 5, keep_last: 3, average_last: 3, threads: 1, early_stopping_metric: loss}
generation: {num_beams: 1, max_new_tokens_over_input: 5}
evaluation: {metrics: [bleu]}
"""


def write_corpus(folder: Path, ending: str) -> Path:
    """200 pairs of 2 to 7 words, the target in reverse, and 12 for each of dev and test."""
    draw = random.Random(1)
    folder.mkdir()
    for split, count in (("train", 200), ("dev", 12), ("test", 12)):
        with open(folder / f"{split}.{ending}", "w") as file:
            for _ in range(count):
                words = [f"w{draw.randrange(20)}" for _ in range(draw.randint(2, 7))]
                source, target = " ".join(words), " ".join(reversed(words))
                pair = {"tsv": f"{source}\t{target}", "jsonl": json.dumps({"fwd": source, "rev": target})}
                file.write(pair[ending] + "\n")
    return folder
