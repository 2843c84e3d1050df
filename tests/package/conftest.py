"""What tests of the command line share."""

import io
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from vanilla_transformer.cli import main


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Runs a command line in this process; gives its exit code and what it wrote to both streams."""

    def run(*arguments: object, stdin: bytes | None = b"") -> SimpleNamespace:
        stream = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stream)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code or 0, out=streams.out, err=streams.err)

    return run
