import errno
import sys

import pytest
import typer

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.command import run


@pytest.fixture
def ended(capsys):
    """Runs a program that raises or prints; gives its exit code and what it wrote to both streams."""

    def ending(do, *arguments):
        app = typer.Typer()
        app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(lambda: do())
        with pytest.raises(SystemExit) as ended:
            run(app, arguments)
        streams = capsys.readouterr()
        return ended.value.code, streams.out, streams.err

    return ending


def raising(error):
    def do():
        raise error

    return do


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("line 3 is wrong"), 1, "line 3 is wrong\n"),
        (PermissionError(errno.EACCES, "Permission denied", "run/x"), 1, "run/x: Permission denied\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "stdout: No space left on device\n"),
        (OSError("a library's own words"), 1, "a library's own words\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, ""),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(ended, error, code, said):
    assert ended(raising(error)) == (code, "", said)


def test_a_fault_of_our_own_is_a_traceback(ended):
    code, _, said = ended(raising(ZeroDivisionError("oh")))
    assert code == 1
    assert said.startswith("Traceback (most recent call last)") and said.endswith("ZeroDivisionError: oh\n")


def test_an_interrupt_says_nothing(ended):
    code, _, said = ended(raising(KeyboardInterrupt()))
    assert (code, said.strip()) == (130, "")


def test_a_closed_stderr_loses_what_is_said_and_nothing_else(ended, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert ended(lambda: print("a result"))[:2] == (0, "a result\n")
    monkeypatch.setattr(sys, "stderr", None)
    assert ended(raising(UserError("wrong")))[:2] == (1, "")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--x=\udcff", "Argument 2, '--x=\\udcff', is not UTF-8 text.\n"),
        ("hf_" + "Q" * 34, "Argument 2, hf_***: holds a token or password, "),
    ],
)
def test_arguments_that_no_run_could_keep_are_refused_before_anything_is_done(ended, argument, said):
    code, out, err = ended(lambda: print("done"), "fine", argument)
    assert (code, out) == (2, "")
    assert err.startswith(said)
