"""`vanilla-transformer push` where something goes wrong: one commit or none, and the truth about which."""

import base64
import json
import subprocess
import sys

import pytest
import scenarios
from hub_clients import Place, run_cli
from localhub import Call, Fault, LocalHub
from localhub_store import StoredFile

pytestmark = pytest.mark.integration

TRANSPORTS = pytest.mark.parametrize("xet", [False, True], ids=["LFS", "Xet"])


def commit_by_bob(call: Call) -> None:
    """Somebody else is quicker."""
    [repo] = call.hub.repos.values()
    files = repo.resolve("main").files
    repo.commit("main", {**files, "notes.txt": StoredFile(b"by Bob")}, "Bob's notes")


def titles(hub: LocalHub) -> list[str]:
    [repo] = hub.repos.values()
    return [commit.title for commit in repo.pushed_commits()]


def test_tokens_that_may_not_write(hub: LocalHub, place: Place, final):
    scenarios.pushed(place, final, "alice/theirs", "--private")
    results = scenarios.refused_tokens(place, final)
    assert results.keys() == {"none", "wrong", "reader", "stranger"}
    # The same for a repo that is there; its commits are what they were.
    for token in (place.reader, place.stranger):
        result = run_cli(place.environment(token=token), "push", final, "alice/theirs")
        assert result.code == 1 and "The token may not write to alice/theirs" in result.err
    assert hub.repos.keys() == {("models", "alice/theirs")} and len(titles(hub)) == 1


def test_a_token_of_hf_auth_login_is_enough(place: Place, final):
    environment = place.environment(token=None)
    login = [sys.executable, "-c", "import sys, huggingface_hub; huggingface_hub.login(sys.argv[1])", place.token]
    subprocess.run(login, env=environment, check=True, capture_output=True, timeout=60)
    assert run_cli(environment, "push", final, place.repo("login")).code == 0


@TRANSPORTS
def test_a_lost_answer_makes_no_second_commit(hub: LocalHub, place: Place, final, xet):
    lost = Fault("POST", "/commit/", "lose")
    hub.faults += [lost, Fault("GET", "/commits/", commit_by_bob)]
    answer = scenarios.pushed(place, final, "alice/lost", xet=xet)
    assert lost.times == 0
    [bobs, ours] = hub.repo("alice/lost").pushed_commits()
    assert bobs.title == "Bob's notes" and ours.id == answer["commit"]


def test_a_busy_hub_is_asked_again(hub: LocalHub, place: Place, final):
    hub.faults += [
        Fault("POST", "/api/repos/create", 503),
        Fault("POST", "/commit/", 502),
        Fault("POST", "/commit/", "drop"),
        Fault("POST", "/tag/", 429),
    ]
    answer = scenarios.pushed(place, final, "alice/busy", "--tag", "v1")
    assert not any(fault.times for fault in hub.faults)
    assert hub.repo("alice/busy").tags == {"v1": answer["commit"]} and len(titles(hub)) == 1


def test_what_somebody_else_pushed_meanwhile_stays(hub: LocalHub, place: Place, final):
    hub.faults.append(Fault("POST", "/commit/", commit_by_bob))
    result = run_cli(place.environment(), "push", final, "alice/shared")
    assert result.code == 1 and "was changed by somebody else during the push, and nothing was written" in result.err
    assert titles(hub) == ["Bob's notes"]
    scenarios.pushed(place, final, "alice/shared")
    assert len(titles(hub)) == 2 and hub.repo("alice/shared").resolve("main").files["notes.txt"].data == b"by Bob"


@TRANSPORTS
def test_a_killed_upload_can_be_repeated(hub: LocalHub, place: Place, final, xet):
    stalled = Fault("POST", "/v1/xorbs/", "stall") if xet else Fault("PUT", "/_lfs/", "stall")
    hub.faults.append(stalled)
    command = [sys.executable, "-m", "vanilla_transformer", "push", str(final), "alice/killed"]
    process = subprocess.Popen(command, env=place.environment(xet=xet), stdout=subprocess.DEVNULL)
    try:
        assert stalled.met.wait(120)
    finally:
        process.kill()
        process.wait()
    assert titles(hub) == []
    scenarios.pushed(place, final, "alice/killed", xet=xet)
    assert len(titles(hub)) == 1


def test_a_refused_upload_leaves_the_repo_as_it_was(hub: LocalHub, place: Place, final):
    hub.faults.append(Fault("PUT", "/_lfs/", 400))
    result = run_cli(place.environment(xet=False), "push", final, "alice/refused")
    assert result.code == 1 and "alice/refused was not pushed" in result.err and "Traceback" not in result.err
    assert titles(hub) == []


@TRANSPORTS
def test_corrupt_bytes_of_the_right_size_are_found(hub: LocalHub, place: Place, final, xet):
    hub.faults.append(Fault("GET", "/_xorb/" if xet else "/_cdn/", "corrupt", times=1000))
    result = run_cli(place.environment(xet=xet), "push", final, "alice/corrupt")
    assert hub.faults[0].times < 1000
    assert result.code == 1 and result.out == "" and "alice/corrupt" in result.err
    if not xet:  # hf_xet itself refuses a damaged chunk
        assert "does not deliver what was sent: model.safetensors differs" in result.err


def test_a_file_that_the_hub_lists_otherwise_is_found(hub: LocalHub, place: Place, final):
    def change_config(call: Call) -> None:
        lines = [json.loads(line) for line in call.body.splitlines()]
        for line in lines:
            if line["value"].get("path") == "config.json":
                content = base64.b64decode(line["value"]["content"]).replace(b"true", b"True")
                line["value"]["content"] = base64.b64encode(content).decode()
        call.body = "\n".join(map(json.dumps, lines)).encode()

    hub.faults.append(Fault("POST", "/commit/", change_config))
    result = run_cli(place.environment(), "push", final, "alice/changed")
    assert result.code == 1 and "does not deliver what was sent: config.json differs" in result.err
    assert "Xet download" not in hub.transports()  # the list of checksums was enough


def test_a_lost_tag_can_be_set_by_another_push(hub: LocalHub, place: Place, final):
    hub.faults.append(Fault("POST", "/tag/", 400))
    assert run_cli(place.environment(), "push", final, "alice/tagged", "--tag", "v1").code == 1
    assert hub.repo("alice/tagged").tags == {}
    answer = scenarios.pushed(place, final, "alice/tagged", "--tag", "v1")
    assert hub.repo("alice/tagged").tags == {"v1": answer["commit"]} and len(titles(hub)) == 1


@pytest.mark.parametrize("dataset", ["{}", "{type: pairs, name: ''}"], ids=["unreadable", "refused by the Hub"])
def test_an_unusable_card_is_refused_before_anything_is_sent(hub: LocalHub, place: Place, final, dataset):
    result = f"{{task: {{type: translation}}, dataset: {dataset}, metrics: [{{type: bleu, value: 1}}]}}"
    (final / "README.md").write_text(f"---\nmodel-index:\n- name: mine\n  results: [{result}]\n---\n")
    result = run_cli(place.environment(), "push", final, "alice/card")
    assert result.code == 1 and "alice/card was not pushed" in result.err and result.err.count("\n") == 1
    assert titles(hub) == [] and not hub.transports()


def test_what_is_no_model_and_what_is_no_name(place: Place, final):
    missing = run_cli(place.environment(), "push", final.parent, "alice/model")
    assert missing.code == 1 and f"did you mean {final}?" in missing.err
    wrong = run_cli(place.environment(), "push", final, "alice/../model")
    assert wrong.code == 2 and "is no name of a repo; write it as org/name" in wrong.err
    offline = run_cli(place.environment(HF_HUB_OFFLINE="1"), "push", final, "alice/model")
    assert offline.code == 1 and "HF_HUB_OFFLINE is set" in offline.err
