"""BLEU for users of the evaluate library: works offline and keeps the signature that evaluate's own metric drops."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.evaluation import corpus_scores

_DESCRIPTION = "Corpus BLEU by sacrebleu with its signature, in the target language's own tokens."
_INPUTS = """
Args:
    predictions: one translation a sentence.
    references: for each prediction a reference, or a list of references of the same number for every prediction.
    target_lang: language code of the references (zh, ja and ko need tokenizers of their own).
    tokenize: a sacrebleu tokenizer by name, instead of the one that target_lang asks for.
Returns:
    score (percent), signature, and sacrebleu's precisions, bp, sys_len, ref_len, counts, totals.
"""
_CITATION = """@inproceedings{post-2018-call,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt",
    booktitle = "Proceedings of the Third Conference on Machine Translation: Research Papers",
    year = "2018",
    url = "https://aclanthology.org/W18-6319",
    pages = "186--191",
}"""


class SignedBleu(evaluate.Metric):
    """An evaluate.Metric of corpus BLEU: `SignedBleu().compute(predictions=..., references=..., target_lang="de")`.

    References follow evaluate's convention, a list of references for each prediction, or one string for each. Keyword
    arguments go to evaluate.Metric; the examples stay in memory unless several processes share them (num_process).
    """

    def __init__(self, target_lang: str | None = None, tokenize: str | None = None, **kwargs: Any):
        self.target_lang, self.tokenize = target_lang, tokenize
        kwargs.setdefault("keep_in_memory", kwargs.get("num_process", 1) == 1)
        super().__init__(**kwargs)

    def _info(self) -> evaluate.MetricInfo:
        prediction = datasets.Value("string")
        many = {"predictions": prediction, "references": datasets.Sequence(datasets.Value("string"))}
        one = {"predictions": prediction, "references": datasets.Value("string")}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=[datasets.Features(many), datasets.Features(one)],
            homepage="https://github.com/mjpost/sacrebleu",
            reference_urls=["https://aclanthology.org/W18-6319"],
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]],
        target_lang: str | None = None,
        tokenize: str | None = None,
    ) -> dict[str, Any]:
        predictions, references = list(predictions), list(references)
        if references and not isinstance(references[0], str):
            counts = {len(alternatives) for alternatives in references}
            if len(counts) > 1 or counts == {0}:
                raise UserError(
                    f"Predictions have from {min(counts)} to {max(counts)} references; each needs the same number, "
                    "at least 1."
                )
            references = [list(stream) for stream in zip(*references, strict=True)]
        target_lang, tokenize = target_lang or self.target_lang, tokenize or self.tokenize
        return corpus_scores(predictions, references, target_lang, metrics=["bleu"], tokenize=tokenize)["bleu"]
