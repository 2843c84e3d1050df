import json

import pytest

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.metrics_log import MetricsLog


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_after_the_checkpoint_are_written_again_not_twice(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"step": 1, "loss": 2.5})
    size, count = log.sync()
    log.write({"step": 2, "loss": 2.0})
    with open(path, "ab") as file:
        file.write(b'{"step": 3, "lo')  # killed in the middle of a row
    log = MetricsLog(path, size, count)
    log.write({"step": 2, "loss": 2.0})
    assert rows(path) == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0}]
    assert log.rows == 2 and log.size == path.stat().st_size


def test_a_run_without_a_checkpoint_begins_with_an_empty_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    MetricsLog(path)
    assert path.read_text() == ""


def test_lost_rows_are_an_error_and_not_papered_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match="3 bytes.*saved when it had 12"):
        MetricsLog(path, 12, 2)


def test_a_number_that_json_does_not_have_becomes_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"loss": float("nan"), "perplexity": float("inf"), "sentence": "字"})
    assert rows(path) == [{"loss": None, "perplexity": None, "sentence": "字"}]
