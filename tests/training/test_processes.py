import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.processes import ProcessLost, lost_process_said, process_group
from vanilla_transformer.training.recipe import TrainingConfig

# Waits that last longer than processes wait for each other; then a failure, and a success after it.
PAIR = """
import json, sys, time
from datetime import timedelta
import torch
from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.processes import from_main, joined_processes, on_main

def fail():
    raise UsageError("a sentence")

processes = joined_processes()
torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=2))
began = time.monotonic()
answers = [from_main(processes, lambda: time.sleep(5) or "late"), on_main(processes, lambda: "for the main one")]
try:
    on_main(processes, fail)
except UsageError as error:
    answers.append(str(error))
except SystemExit as left:
    answers.append(left.code)
answers.append(from_main(processes, lambda: "on we go"))
json.dump(answers, open(f"{sys.argv[1]}.{processes.process_index}", "w"))
"""


@pytest.mark.integration
def test_the_others_wait_for_the_main_process_however_long_and_fail_with_it(tmp_path):
    (tmp_path / "pair.py").write_text(PAIR)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(tmp_path / "pair.py"), str(tmp_path / "answers")]
    subprocess.run(command, check=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    main, other = (json.loads((tmp_path / f"answers.{rank}").read_text()) for rank in range(2))
    assert main == ["late", "for the main one", "a sentence", "on we go"]
    assert other == ["late", None, 2, "on we go"]


@pytest.mark.parametrize("minutes", (0.5, 10, 30, 600))  # 10 is Accelerate's own default, which it would not pass on
def test_the_time_that_processes_wait_is_the_recipes(minutes):
    timeout = process_group(minutes).to_kwargs()["timeout"]
    assert abs(timeout - timedelta(minutes=minutes)) < timedelta(seconds=1)


@pytest.mark.parametrize(
    ("count", "machines", "shared", "method"),
    [("1", "1", "True", "again://"), ("0", "1", "True", None), ("1", "2", "True", None), ("1", "1", "False", None)],
)
def test_processes_that_torchrun_starts_again_on_one_machine_meet_apart(monkeypatch, count, machines, shared, method):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    monkeypatch.setenv("GROUP_WORLD_SIZE", machines)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    assert process_group().to_kwargs().get("init_method") == method


def test_without_a_recipe_it_is_that_of_the_recipes_default():
    assert process_group() == process_group(TrainingConfig().process_timeout_minutes)


GLOO = "[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711\nException raised from ..."


NETWORK = torch.distributed.DistNetworkError("Connection reset by peer. Check the logs of the remote worker.")


@pytest.mark.parametrize(
    ("error", "reason"),
    ((RuntimeError(GLOO), "Connection closed by peer [127.0.0.1]:4711"), (NETWORK, "Connection reset by peer")),
)
def test_a_lost_process_is_a_sentence_and_exit_code_1(monkeypatch, caplog, error, reason):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr("vanilla_transformer.training.processes.threading.Timer", Guard)
    with pytest.raises(ProcessLost) as left, lost_process_said("Do this."):
        raise error
    assert left.value.code == 1
    (record,) = caplog.records
    said = f"Process 3 of 8 (counted from 0) stops: another one has died, or has not answered in time ({reason})."
    assert record.message.startswith(said) and record.message.endswith(" Do this.")
    assert Guard.seconds == 20


class Guard:
    """Stands in for the timer that ends the process when its cleaning up gets stuck."""

    seconds = None

    def __init__(self, seconds, function, arguments):
        assert (function, arguments) == (os._exit, (1,))
        self._seconds = seconds

    def start(self):
        assert self.daemon
        Guard.seconds = self._seconds


def test_other_errors_pass(monkeypatch):
    for world, error in (
        ("2", RuntimeError("shapes differ")),
        ("2", UserError("a mistake")),
        ("1", RuntimeError(GLOO)),
    ):
        monkeypatch.setenv("WORLD_SIZE", world)
        with pytest.raises(type(error)) as raised, lost_process_said():
            raise error
        assert raised.value is error


def test_no_time_at_all_is_refused():
    assert TrainingConfig(process_timeout_minutes=0).problems() == ["process_timeout_minutes = 0: must be above 0"]
