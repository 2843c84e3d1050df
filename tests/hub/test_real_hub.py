"""The scenarios of the local Hub on a real one: HF_ENDPOINT=https://huggingface.co HF_TOKEN=... pytest -m hub tests/hub

The token has to be of write access. Every repo is named vanilla-transformer-..., and deleted at the end.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenarios
from hub_clients import Place

pytestmark = [pytest.mark.hub, pytest.mark.integration]

WHO = "import huggingface_hub; print(huggingface_hub.whoami()['name'])"
DELETE = """
import sys, huggingface_hub
for repo in sys.argv[1:]:
    for kind in ("model", "dataset"):
        huggingface_hub.delete_repo(repo, repo_type=kind, missing_ok=True)
"""


@pytest.fixture
def place(real_hub: dict[str, str], tmp_path: Path) -> Iterator[Place]:
    nameless = Place(real_hub["endpoint"], "", real_hub["token"], tmp_path)
    who = subprocess.check_output([sys.executable, "-c", WHO], env=nameless.environment(), text=True, timeout=60)
    place = Place(real_hub["endpoint"], who.strip(), real_hub["token"], tmp_path)
    yield place
    delete = [sys.executable, "-c", DELETE, *place.repos]
    subprocess.run(delete, env=place.environment(), check=True, timeout=300)


@pytest.mark.parametrize("xet", [False, True], ids=["LFS", "Xet"])
def test_a_pushed_model_is_the_same_for_who_loads_it(place, final, trained, xet):
    scenarios.push_and_load(place, final, trained.pairs, xet)


def test_revisions(place, final, variant):
    scenarios.revisions(place, final, variant)


def test_private_repos(place, final):
    scenarios.private(place, final)


def test_tokens_that_may_not_write(place, final):
    scenarios.refused_tokens(place, final)


def test_trainer_with_push_to_hub(place, final, trained):
    scenarios.trainer_with_push_to_hub(place, final, trained.pairs)


def test_a_corpus_on_the_hub_and_a_score_in_the_card(place, final, trained):
    corpus, _ = scenarios.corpus_on_the_hub(place, trained.pairs)
    scenarios.score_into_the_card(place, final, corpus)
