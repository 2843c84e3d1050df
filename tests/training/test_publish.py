"""What a push says when there is no Hub to talk to; what it does with one is in tests/hub."""

import huggingface_hub
import pytest
from run_files import write_run

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import publish

TOKEN = "hf_secretOfSomebody12345"


@pytest.fixture
def unreachable(monkeypatch, tmp_path) -> str:
    """An endpoint that nobody listens at, and how often and how long was waited for it."""
    endpoint = "http://127.0.0.1:9"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return endpoint


def test_an_unreachable_hub_is_tried_again_and_then_named(unreachable, tmp_path, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(publish.time, "sleep", waits.append)
    final = write_run(tmp_path / "run")
    with pytest.raises(UserError, match=f"org/name was not pushed; {unreachable} cannot be used: ") as raised:
        publish.push(final, "org/name")
    assert waits == list(publish.WAITS)
    assert TOKEN not in str(raised.value) and "\n" not in str(raised.value)
    assert not (final / "README.md").exists()


def test_what_cannot_be_pushed_is_said_before_anybody_is_asked(unreachable, tmp_path, monkeypatch):
    final = write_run(tmp_path / "run")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="push needs a token that may write to org/name"):
        publish.push(final, "org/name")
    with pytest.raises(UserError, match="is not a model folder: it has no config.json; did you mean"):
        publish.push(final.parent, "org/name")
