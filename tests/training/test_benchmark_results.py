from pathlib import Path

import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries
from huggingface_hub.errors import EntryNotFoundError
from run_files import BLEU, on_the_hub, write_run

from vanilla_transformer.training.benchmark_results import write_eval_results
from vanilla_transformer.training.model_facts import read_facts

TASKS = {"tasks": [{"id": "other", "config": "fr-en", "split": "newstest"}, {"id": "wmt", "split": "newstest"}]}


class Hub:
    """Has one file, or none: a data set's eval.yaml."""

    def __init__(self, folder: Path, content: dict | None):
        self.path, self.content = folder / "eval.yaml", content

    def hf_hub_download(self, repo_id: str, filename: str, repo_type: str) -> str:
        assert (repo_id, filename, repo_type) == ("org/pairs", "eval.yaml", "dataset")
        if self.content is None:
            raise EntryNotFoundError("404")
        self.path.write_text(yaml.safe_dump(self.content))
        return str(self.path)


def test_a_benchmark_s_split_gets_the_bleu_under_the_id_of_its_task(tmp_path):
    final = write_run(tmp_path / "run", **on_the_hub(revision="v2"))
    write_eval_results(read_facts(final), Hub(tmp_path, TASKS))
    [entry] = parse_eval_result_entries(yaml.safe_load((final / ".eval_results" / "pairs.yaml").read_text()))
    assert entry == EvalResultEntry("org/pairs", "wmt", 27.9, dataset_revision="v2", notes=f"BLEU {BLEU}")


@pytest.mark.parametrize(
    "content", [None, {}, {"tasks": [{"id": "dev", "split": "validation"}]}, {"tasks": TASKS["tasks"][:1]}]
)
def test_without_such_a_task_nothing_is_written(tmp_path, content):
    final = write_run(tmp_path / "run", **on_the_hub())
    write_eval_results(read_facts(final), Hub(tmp_path, content))
    assert not (final / ".eval_results").exists()


def test_a_local_corpus_asks_nobody(tmp_path):
    final = write_run(tmp_path / "run")
    write_eval_results(read_facts(final), None)
    assert not (final / ".eval_results").exists()
