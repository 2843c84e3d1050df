"""`vanilla-transformer convert`: the folder on stdout, what differs on stderr, and one of --from and --to."""

import pytest
from typer.testing import CliRunner

from vanilla_transformer.cli import app
from vanilla_transformer.configuration.errors import UsageError


def convert(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


@pytest.mark.integration  # `trained` starts a process
def test_to_marian(trained, tmp_path):
    done = convert(trained.run / "final", tmp_path / "marian", "--to", "marian")
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'marian'}\n")
    assert "which MarianMTModel does not have" in done.stderr
    again = convert(tmp_path / "marian", tmp_path / "ours", "--from", "marian")
    assert (again.exit_code, again.stdout) == (0, f"{tmp_path / 'ours'}\n")


@pytest.mark.parametrize("options", [[], ["--from", "marian", "--to", "onnx"]])
def test_one_direction_is_needed(options, tmp_path):
    done = convert(tmp_path, tmp_path / "out", *options)
    assert isinstance(done.exception, UsageError)
    assert "needs one of --from and --to" in str(done.exception)
