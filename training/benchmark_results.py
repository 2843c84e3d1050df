"""The Hub's decentralised leaderboards: .eval_results/*.yaml for test splits that the Hub knows as benchmarks."""

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, HfApi, eval_result_entries_to_yaml
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

from vanilla_transformer.training.durable import write_text
from vanilla_transformer.training.model_facts import HubSplit, ModelFacts

EVAL_RESULTS = ".eval_results"


def write_eval_results(facts: ModelFacts, api: HfApi) -> None:
    """Write the model's BLEU on a split of its own corpus to .eval_results/, where that split is a benchmark's task.

    A result names its task by the id that the data set's eval.yaml gives it, so for a data set that has none, and for
    a corpus that is not on the Hub, nothing is written. Format: https://huggingface.co/docs/hub/eval-results
    """
    for result in facts.results:
        split = facts.hub_split(result.get("split"))
        if split is not None and "bleu" in result["scores"]:
            task = _task(_benchmark(api, split.dataset), split)
            if task is not None:
                _write(facts.folder, split, task, result["scores"]["bleu"])


def _write(folder: Path, split: HubSplit, task: str, bleu: dict[str, Any]) -> None:
    entry = EvalResultEntry(
        dataset_id=split.dataset,
        task_id=task,
        value=round(bleu["score"], 2),
        dataset_revision=split.revision,
        notes=f"BLEU {bleu['signature']}",
    )
    path = folder / EVAL_RESULTS / f"{Path(split.dataset).name}.yaml"
    path.parent.mkdir(exist_ok=True)
    write_text(path, yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True))


def _benchmark(api: HfApi, dataset: str) -> dict[str, Any]:
    """The data set's eval.yaml, which makes it a benchmark; empty where it has none, or is not to be seen."""
    try:
        path = api.hf_hub_download(dataset, "eval.yaml", repo_type="dataset")
    except (EntryNotFoundError, RepositoryNotFoundError):
        return {}
    found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def _task(benchmark: dict[str, Any], split: HubSplit) -> str | None:
    """The id of the task that is this split."""
    for task in benchmark.get("tasks") or []:
        if (task.get("config", "default"), task.get("split")) == (split.config or "default", split.split):
            return task.get("id")
    return None
