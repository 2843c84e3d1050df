"""What a user does with a Hub, and what has to come of it: the same on the local Hub and on a real one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from client_load import weights_hash
from hub_clients import Place, Result, run_cli, run_client
from huggingface_hub import ModelCard

from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

Variant = Callable[[Path, float], Path]


def pushed(place: Place, folder: Path, repo: str, *flags: str, xet: bool = True) -> dict[str, Any]:
    """The answer of a push that has to succeed."""
    result = run_cli(place.environment(xet=xet), "push", folder, repo, "--json", *flags)
    assert result.code == 0, result.err
    return json.loads(result.out)


def hash_of(folder: Path) -> str:
    return weights_hash(VanillaTransformerForConditionalGeneration.from_pretrained(folder))


def loads(place: Place, sources: list[str], *each: dict[str, Any], **client: Any) -> list[dict[str, Any]]:
    """What a user without this package gets for each set of arguments of `from_pretrained`."""
    request = {"absent": True, "sources": sources, "loads": list(each)}
    return run_client(place, "client_load.py", request, **client)["loads"]


def push_and_load(place: Place, final: Path, pairs: dict[str, str], xet: bool = True) -> dict[str, Any]:
    """A pushed model is the same model for whoever loads it by its id, with code trusted, and refused without trust.

    The code in its card does what it says.
    """
    answer = pushed(place, final, place.repo("push"), "--tag", "v1", "--license", "apache-2.0", xet=xet)
    repo = answer["repo"]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= {*answer["files"]}
    assert answer["url"].endswith(f"/{repo}/commit/{answer['commit']}")
    request = {"absent": True, "sources": [*pairs], "loads": [{"id": repo}, {"id": repo, "trust_remote_code": True}]}
    user = run_client(place, "client_load.py", request | {"cards": [repo]}, xet=xet)
    refused, loaded = user["loads"]
    assert "trust_remote_code=True" in refused["refused"]
    assert loaded["weights"] == hash_of(final)
    # The pipeline joins what this tokenizer, of space-separated words, has cut.
    assert [text.split() for text in loaded["translations"]] == [text.split() for text in pairs.values()]
    assert user["cards"] == [["TranslationPipeline"]]
    return answer


def revisions(place: Place, final: Path, variant: Variant) -> None:
    """A tag, a branch, a commit and main each bring the weights that were pushed there."""
    repo = place.repo("revisions")
    second, third = variant(final, 0.5), variant(final, 2.0)
    first = pushed(place, final, repo, "--tag", "v1")
    newest = pushed(place, second, repo)
    pushed(place, third, repo, "--revision", "trial")
    names = ("v1", first["commit"], "main", "trial")
    found = loads(place, ["no ."], *({"id": repo, "trust_remote_code": True, "revision": name} for name in names))
    expected = [hash_of(folder) for folder in (final, final, second, third)]
    assert [each["weights"] for each in found] == expected
    assert len({*expected}) == 3

    # What is there already makes no commit, but can get a tag; a tag that is there never moves.
    assert pushed(place, second, repo, "--tag", "v2")["commit"] == newest["commit"]
    taken = run_cli(place.environment(), "push", third, repo, "--tag", "v1")
    assert taken.code == 1 and "The tag exists already" in taken.err


def private(place: Place, final: Path) -> None:
    """A private repo exists for its owners alone, and is never what a public one silently stays."""
    repo = place.repo("private")
    pushed(place, final, repo, "--private")
    tokens = {
        "owner": place.token,
        "reader": place.reader,
        "none": None,
        "stranger": place.stranger,
        "wrong": place.wrong,
    }
    asked = {name: token for name, token in tokens.items() if token or name == "none"}
    request = [{"id": repo, "trust_remote_code": True, "token": token or False} for token in asked.values()]
    found = dict(zip(asked, loads(place, ["no ."], *request, token=None), strict=True))
    for name, answer in found.items():
        if name in ("owner", "reader"):
            assert answer["weights"] == hash_of(final), name
        else:
            assert "refused" in answer and repo in answer["refused"], name

    public = place.repo("public")
    pushed(place, final, public)
    hidden = run_cli(place.environment(), "push", final, public, "--private")
    assert hidden.code == 1 and "exists and is public" in hidden.err


def refused_tokens(place: Place, final: Path) -> dict[str, Result]:
    """One sentence, exit code 1 and no traceback for whoever may not write."""
    repo = place.repo("refused")
    tokens = {"none": None, "wrong": place.wrong, "reader": place.reader, "stranger": place.stranger}
    said = {
        "none": "run `hf auth login`, or set HF_TOKEN",
        "wrong": "does not accept the token in HF_TOKEN",
        "reader": f"The token may not write to {repo}",
        "stranger": f"The token may not write to {repo}",
    }
    results = {}
    for name, token in tokens.items():
        if token or name == "none":
            results[name] = run_cli(place.environment(token=token), "push", final, repo)
            assert results[name].code == 1 and results[name].out == "", name
            assert said[name] in results[name].err, name
            assert results[name].err.count("\n") == 1, name
    return results


def trainer_with_push_to_hub(place: Place, final: Path, pairs: dict[str, str]) -> str:
    """What Seq2SeqTrainer pushed is what it trained; returns the repo."""
    repo = place.repo("trainer")
    answer = run_client(place, "client_train.py", {"model": str(final), "repo": repo, "pairs": pairs})
    assert answer["before"] != answer["trained"] == answer["loaded"]
    [loaded] = loads(place, ["no ."], {"id": repo, "trust_remote_code": True})
    assert loaded["weights"] == answer["trained"]
    return repo


# Too small and too short to learn anything: what counts is where the pairs come from.
MOMENT = {
    "tokenizer": {"type": "words", "vocab_size": 60},
    "model": {
        "preset": None,
        "d_model": 16,
        "d_ff": 16,
        "num_heads": 2,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
    },
    "training": {"max_steps": 2, "save_every": 2, "eval_every": 2, "keep_last": 1, "average_last": 1}
    | {"max_source_tokens": 100, "max_target_tokens": 100},
    "evaluation": {"decode": False},
}
BENCHMARK = "name: Six sentences\ntasks:\n  - {id: six_test, config: default, split: test}\n"


def corpus_on_the_hub(place: Place, pairs: dict[str, str]) -> tuple[str, str]:
    """A private data set is read, streamed and trained on by its id, and its benchmark gets the model's score.

    Returns the names of the data set and of the model trained on it.
    """
    corpus, model = place.repo("corpus"), place.repo("trained")
    request = {"corpus": corpus, "pairs": pairs, "recipe": MOMENT, "eval": BENCHMARK}
    answer = run_client(place, "client_corpus.py", request)
    expected = [list(pair) for pair in pairs.items()]
    for way in ("read", "streamed"):
        assert answer[way] == {"train": expected, "dev": expected, "test": expected}, way
    assert corpus in answer["stranger"]

    [final] = place.scratch.glob("client-*/read/final")
    files = pushed(place, final, model, "--private")["files"]
    [results] = [name for name in files if name.startswith(".eval_results/")]
    [entry] = yaml.safe_load((final / results).read_text(encoding="utf-8"))
    score = json.loads((final.parent / "results" / "test.json").read_text(encoding="utf-8"))["scores"]["bleu"]
    assert entry["dataset"] == {"id": corpus, "task_id": "six_test"}
    assert entry["value"] == round(score["score"], 2) and score["signature"] in entry["notes"]
    card = ModelCard.load(final / "README.md")
    assert card.data.datasets == [corpus]
    result = card.data.eval_results[0]
    assert (result.dataset_type, result.dataset_split) == (corpus, "test")
    return corpus, model


def score_into_the_card(place: Place, final: Path, corpus: str) -> None:
    """evaluate.push_to_hub adds to the scores of our card and leaves its text."""
    repo = pushed(place, final, place.repo("scored"))["repo"]
    ours = ModelCard.load(final / "README.md")
    score = {
        "metric_type": "sacrebleu",
        "metric_name": "BLEU",
        "metric_value": 12.34,
        "metric_args": {"signature": "x"},
    }
    where = {"task_type": "translation", "dataset_type": corpus, "dataset_name": "Another set", "dataset_split": "test"}
    answer = run_client(place, "client_score.py", {"model_id": repo, **where, **score})
    assert ["Another set", "sacrebleu", 12.34, {"signature": "x"}] in answer["scores"]
    assert len(answer["scores"]) == len(ours.data.eval_results) + 1
    assert answer["text"] == ours.text
