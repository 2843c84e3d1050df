"""The local Hub keeps its word to the tests that stand on it."""

import urllib.error
import urllib.request
from http.client import RemoteDisconnected

import pytest
from localhub import ALICE, Fault, LocalHub
from localhub_store import Repo


def get(hub: LocalHub, path: str, token: str | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(hub.url + path, headers=headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return answer.read()


@pytest.mark.parametrize("path", ["/nonsense", "/api/models/alice/model/nonsense", "/api/repos/create"])
def test_an_unknown_route_fails_the_test_that_used_it(path):
    with pytest.raises(AssertionError, match=f"has no answer to: GET {path}"):
        with LocalHub() as hub:
            hub.repos["models", "alice/model"] = Repo("models", "alice/model", private=False)
            with pytest.raises(urllib.error.HTTPError):
                get(hub, path, ALICE)


def test_an_error_on_purpose_is_in_the_log_and_fails_nothing():
    with LocalHub() as hub:
        for token, status in ((None, 401), ("hf_unknown", 401), (ALICE, 404)):
            with pytest.raises(urllib.error.HTTPError) as raised:
                get(hub, "/api/models/alice/absent", token)
            assert raised.value.code == status
        assert [request.error for request in hub.requests] == [
            "Invalid username or password.",
            "Invalid credentials in Authorization header",
            "Repository not found",
        ]


def test_faults_come_as_often_as_they_were_ordered():
    with LocalHub() as hub:
        intact = get(hub, "/api/whoami-v2", ALICE)
        actions = (503, "drop", "lose", "corrupt")
        hub.faults += [Fault("GET", "whoami", action) for action in actions]
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(hub, "/api/whoami-v2", ALICE)
        for _ in range(2):
            with pytest.raises(RemoteDisconnected):
                get(hub, "/api/whoami-v2", ALICE)
        damaged = get(hub, "/api/whoami-v2", ALICE)
        assert len(damaged) == len(intact) and damaged != intact
        assert get(hub, "/api/whoami-v2", ALICE) == intact
        assert [request.fault for request in hub.requests] == [None, "503", "drop", "lose", "corrupt", None]
