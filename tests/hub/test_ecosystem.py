"""What other libraries of the ecosystem do with the Hub, against the local one: Trainer, datasets, evaluate."""

import pytest
import scenarios
from hub_clients import Place
from localhub import LocalHub
from localhub_store import Repo

pytestmark = pytest.mark.integration


def test_trainer_with_push_to_hub(hub: LocalHub, place: Place, final, trained):
    repo = scenarios.trainer_with_push_to_hub(place, final, trained.pairs)
    assert hub.repo(repo).private
    # Trainer's own card, on top of what it pushed while training.
    newest = hub.repo(repo).resolve("main")
    assert newest.title == "End of training" and b"six pairs" in newest.files["README.md"].data


def test_a_corpus_on_the_hub(hub: LocalHub, place: Place, trained):
    corpus, model = scenarios.corpus_on_the_hub(place, trained.pairs)
    assert hub.repo(corpus, "datasets").private and hub.repo(model).private
    assert any("/resolve/" in request.path and request.path.endswith(".parquet") for request in hub.requests)


def test_evaluate_pushes_a_score_into_the_card(hub: LocalHub, place: Place, final):
    hub.repos["datasets", "alice/set"] = Repo("datasets", "alice/set", private=False)
    scenarios.score_into_the_card(place, final, "alice/set")
