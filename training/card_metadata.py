"""What the Hub itself reads of a model card: the metadata block with its model-index."""

from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vanilla_transformer.training.model_facts import ModelFacts

# sacrebleu's scores: the Hub's name of the metric, and ours for readers.
METRICS = {
    "bleu": ("sacrebleu", "BLEU"),
    "bleu_lowercase_tokenized": ("sacrebleu", "BLEU, lower-cased and Moses-tokenised"),
    "bleu_paper": ("sacrebleu", "BLEU, tokenised as in Vaswani et al. 2017"),
    "chrf": ("chrf", "chrF2"),
    "chrf++": ("chrf", "chrF++"),
    "ter": ("ter", "TER"),
}


def card_data(facts: ModelFacts, name: str, license: str | None) -> ModelCardData:
    """The metadata block; keys without a source are left out by ModelCardData."""
    results = [entry for result in facts.results for entry in eval_results(facts, result)]
    return ModelCardData(
        language=facts.languages or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vanilla-transformer"],
        base_model=facts.hub_base_model,
        datasets=[facts.hub_corpus] if facts.hub_corpus else None,
        metrics=sorted({entry.metric_type for entry in results}) or None,
        model_name=name if results else None,
        eval_results=results or None,
    )


def eval_results(facts: ModelFacts, result: dict[str, Any]) -> list[EvalResult]:
    """One test set's scores for the model-index; each score carries its signature as the metric's argument.

    A test set that is no data set on the Hub stands under the name that its users know it by.
    """
    split = facts.hub_split(result.get("split"))
    name = name_of_test_set(facts, result)
    pair = [code for code in (result.get("source_lang"), result.get("target_lang")) if code]
    entries = []
    for metric, score in result["scores"].items():
        metric_type, metric_name = METRICS[metric]
        arguments: dict[str, Any] = {"signature": score["signature"]}
        if interval := score.get("confidence_interval"):
            arguments["confidence_interval"] = [round(interval["low"], 2), round(interval["high"], 2)]
            arguments["confidence_level"] = interval["level"]
        entries.append(
            EvalResult(
                task_type="translation",
                task_name=f"Translation {'-'.join(pair)}".strip(),
                dataset_type=split.dataset if split else name,
                dataset_name=name,
                dataset_config=split.config if split else None,
                dataset_split=split.split if split else result.get("split"),
                dataset_revision=split.revision if split else None,
                metric_type=metric_type,
                metric_name=metric_name,
                metric_value=round(score["score"], 2),
                metric_args=arguments,
            )
        )
    return entries


def name_of_test_set(facts: ModelFacts, result: dict[str, Any]) -> str:
    """What the result is of: the run's corpus, whose test split it is, or what its user called it."""
    return str(facts.corpus) if "split" in result else result["name"]
