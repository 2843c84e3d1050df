"""Every row of docs/bad_inputs.md by the command line: its sentence, its exit code, and that nothing is lost."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import bad_inputs_corpora  # noqa: F401  (these four fill CASES)
import bad_inputs_hub
import bad_inputs_models  # noqa: F401
import bad_inputs_recipes  # noqa: F401
import bad_inputs_runs  # noqa: F401
import bad_inputs_table
import pytest
import torch
from bad_inputs_bench import CASES, TOKEN, Bench, Case

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.recipe import TokenizerConfig
from vanilla_transformer.training.tokenizer import train_tokenizer

ROWS = bad_inputs_table.rows()
# Not what a user is told: a header of problems, the usage that stands before some errors, a progress bar.
BESIDE = re.compile(r"|.*: \d+ problems?|Usage: .*|Try .*|.*\d+%\|.*")


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of a few thousand random weights that knows the words a to k."""
    folder = tmp_path_factory.mktemp("small") / "model"
    tokenizer = train_tokenizer(["a b c d e f g h i j k"], TokenizerConfig(vocab_size=60, type="words"))
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def bench(tmp_path, small_model, monkeypatch, request) -> Bench:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path.with_name(f"{tmp_path.name}-cache"))
    return Bench(tmp_path, small_model, lambda: request.getfixturevalue("trained"))


@pytest.fixture(scope="module")
def hub_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SimpleNamespace]:
    return bad_inputs_hub.answers(tmp_path_factory.mktemp("hub"))


def content(folder: Path) -> dict[str, str]:
    """Every file below a folder by its hash, but for locks and for prepared data, which is whole or not there."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    kept = (path for path in files if "prepared" not in path.relative_to(folder).parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def by_shell(case: Case) -> SimpleNamespace:
    command = [sys.executable, "-m", "vanilla_transformer", *map(str, case.arguments)]
    shell = ["sh", "-c", f'exec "$@" {case.redirect}', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=120)
    return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)


def check(documented: bad_inputs_table.Row, values: dict[str, object], result: SimpleNamespace) -> None:
    """Exit code and sentence are those of the row, and nothing else was said."""
    assert result.code == documented.exit_code, result.err
    assert "Traceback" not in result.err
    assert TOKEN not in result.out + result.err
    if not documented.exit_code:
        return
    said = [line.rpartition("\r")[2].strip().removeprefix("Error: ") for line in result.err.splitlines()]
    said = [line for line in said if not BESIDE.fullmatch(line)]
    pattern = documented.pattern(values)
    assert any(re.fullmatch(pattern, line) for line in said), (pattern, said)
    assert len(said) == 1 or " problems\n" in result.err, said


def parameters() -> list:
    slow = {id: make for id, make in CASES.items() if id.startswith(("resume-", "stdout-"))}  # processes of their own
    return [pytest.param(id, marks=pytest.mark.integration if id in slow else ()) for id in CASES]


@pytest.mark.parametrize("id", parameters())
def test_row(id: str, bench: Bench, cli: Callable[..., SimpleNamespace]):
    case = CASES[id](bench)
    before = content(bench.folder)
    with case.under():
        result = by_shell(case) if case.redirect else cli(*case.arguments, stdin=case.stdin)
    check(ROWS[id], case.values, result)
    assert case.expect(result)
    if ROWS[id].exit_code:
        assert content(bench.folder) == before


@pytest.mark.integration
@pytest.mark.parametrize("id", bad_inputs_hub.ASKED)
def test_hub_row(id: str, hub_answers: dict[str, SimpleNamespace]):
    answer = hub_answers[id]
    endpoint = {"endpoint": answer.endpoint} if "<endpoint>" in ROWS[id].says and id != "hub-unreachable" else {}
    check(ROWS[id], endpoint, answer)


def test_every_row_is_tested_and_every_case_documented():
    assert {*CASES, *bad_inputs_hub.ASKED} == set(ROWS)
