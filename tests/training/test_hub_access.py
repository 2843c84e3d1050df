"""The Hub's answers to somebody who may not read, each built as the Hub's client builds it."""

import httpx2
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import hf_raise_for_status

from vanilla_transformer.training.hub_access import reading_problem

TOKEN = "hf_" + "Q" * 34


@pytest.fixture
def hub(monkeypatch):
    """Makes the Hub answer every question about a repo with a status, headers, or an error on the way."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def answer(status: int, code: str = "", message: str = "", error: Exception | None = None, token: bool = False):
        def ask(api, repo_id, **options):
            if error is not None:
                raise error
            request = httpx2.Request("GET", f"https://huggingface.co/api/models/{repo_id}/auth-check")
            headers = {name: value for name, value in (("X-Error-Code", code), ("X-Error-Message", message)) if value}
            hf_raise_for_status(httpx2.Response(status, headers=headers, request=request))

        monkeypatch.setattr(HfApi, "auth_check", ask)
        monkeypatch.setenv("HF_TOKEN", TOKEN) if token else monkeypatch.delenv("HF_TOKEN", raising=False)

    return answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 404, "code": "RepoNotFound", "token": True}, "does not exist, or is private and not for the token"),
        ({"status": 401}, "does not exist, or is private and nobody is logged in; check the name, or log in with `hf"),
        ({"status": 403, "code": "GatedRepo", "token": True}, "gated, and the account of the token in use has no acc"),
        ({"status": 401, "code": "GatedRepo"}, "gated, and nobody is logged in; ask for access on https://huggingface"),
        (
            {"status": 401, "message": "Invalid credentials in Authorization header", "token": True},
            "the Hub refuses the token in use, it is wrong or has expired",
        ),
        ({"status": 403, "token": True}, "the token in use may not read it"),
        ({"status": 429}, "the Hub is busy or out of order (it answers 429); try again later."),
        ({"status": 503}, "the Hub is busy or out of order (it answers 503); try again later."),
        ({"status": 0, "error": httpx2.ConnectError("refused")}, "https://huggingface.co cannot be reached (ConnectEr"),
        ({"status": 0, "error": TimeoutError()}, "https://huggingface.co cannot be reached (TimeoutError), and there"),
    ],
)
def test_one_sentence_each_without_the_token(hub, answer, said):
    hub(**answer)
    problem = reading_problem("model", "user/x")
    assert problem and problem.startswith(f"Hub model user/x: {said}")
    assert "\n" not in problem and TOKEN not in problem


@pytest.mark.parametrize("status", [200, 404])  # a mirror that does not know the question
def test_no_problem_is_made_up(hub, status):
    hub(status)
    assert reading_problem("dataset", "user/x") is None


def test_a_revision_that_does_not_exist(hub, monkeypatch):
    hub(200)

    def missing(api, repo_id, **options):
        request = httpx2.Request("GET", f"https://huggingface.co/api/datasets/{repo_id}/revision/v9")
        hf_raise_for_status(httpx2.Response(404, headers={"X-Error-Code": "RevisionNotFound"}, request=request))

    monkeypatch.setattr(HfApi, "repo_info", missing)
    assert reading_problem("dataset", "user/x", "v9") == (
        "Hub data set user/x: has no revision v9; give a branch, a tag or a commit of it."
    )
    assert reading_problem("dataset", "user/x") is None


def test_a_name_that_no_repo_can_have_is_not_asked_for(monkeypatch):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(HfApi, "auth_check", never)
    assert "no repo can have this name" in str(reading_problem("model", "two words"))


def test_offline_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE keeps the Hub out of reach" in str(reading_problem("model", "user/x"))
