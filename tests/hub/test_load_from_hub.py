"""Models pushed to the local Hub and loaded by their ids, over both of the Hub's transports."""

import pytest
import scenarios
from hub_clients import copied_run, run_client
from localhub import LocalHub

from vanilla_transformer.training.card import write_card
from vanilla_transformer.training.model_facts import read_facts

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("transport", ["LFS", "Xet"])
def test_a_pushed_model_is_the_same_for_who_loads_it(hub: LocalHub, place, final, trained, transport):
    answer = scenarios.push_and_load(place, final, trained.pairs, xet=transport == "Xet")
    assert hub.transports() == {f"{transport} upload", f"{transport} download"}
    repo = hub.repo(answer["repo"])
    [commit] = repo.pushed_commits()
    assert commit.id == answer["commit"] == repo.tags["v1"]
    sent = {name: (final / name).read_bytes() for name in answer["files"]}
    assert {name: file.data for name, file in commit.files.items() if name in sent and not file.sha256} == {
        name: data for name, data in sent.items() if name != "model.safetensors"
    }
    # The token goes to the Hub alone, never to the content network or the Xet store.
    content_host = hub.content_url.removeprefix("http://")
    elsewhere = [each for each in hub.requests if each.host == content_host or each.path.startswith("/_xorb/")]
    assert elsewhere and not any(request.authorized for request in elsewhere)


def test_what_came_over_xet_is_there_without_xet(hub: LocalHub, place, final):
    repo = scenarios.pushed(place, final, place.repo("bridge"))["repo"]
    [loaded] = scenarios.loads(place, ["no ."], {"id": repo, "trust_remote_code": True}, xet=False)
    assert loaded["weights"] == scenarios.hash_of(final)
    assert "LFS download" in hub.transports() and "LFS upload" not in hub.transports()


def test_revisions(place, final, variant):
    scenarios.revisions(place, final, variant)


def test_private_repos(place, final):
    scenarios.private(place, final)


def test_with_the_package_the_card_s_code_needs_no_trust(place, final, trained, tmp_path):
    local = copied_run(trained.run, tmp_path / "local")
    write_card(read_facts(local))  # names the folder, as at the end of training
    repo = scenarios.pushed(place, final, place.repo("card"))["repo"]
    request = {"absent": False, "sources": ["no ."], "cards": [str(local), repo], "loads": [{"id": repo}]}
    answer = run_client(place, "client_load.py", request)
    assert answer["cards"] == [["TranslationPipeline", "TranslationPipeline"]] * 2
    assert answer["loads"][0]["weights"] == scenarios.hash_of(final)
