"""A user's process: puts a score into a model's card with the evaluate library.

Request: the arguments of `evaluate.push_to_hub`. Answer: the scores in the card that the Hub has then, and its text.
"""

import json
import sys
from pathlib import Path

import evaluate
from huggingface_hub import ModelCard

request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
evaluate.push_to_hub(**request)
card = ModelCard.load(request["model_id"])
scores = [
    [result.dataset_name, result.metric_type, result.metric_value, result.metric_args]
    for result in card.data.eval_results
]
Path(sys.argv[2]).write_text(json.dumps({"scores": scores, "text": card.text}), encoding="utf-8")
