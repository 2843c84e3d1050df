"""What the Multi30k scripts reckon and choose, on runs that are made up."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    *("multi30k_seeds", "best_model", "multi30k_peers", "multi30k_joeynmt", "learning_curve", "choose_alpha", "record"),
    *("render", "result_files", "training_runs", "peer_environments"),
)


@pytest.fixture
def benchmarks(monkeypatch):
    """Imports a module of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield __import__
    for name in MODULES:
        sys.modules.pop(name, None)


def run(seed: int, bleu: float, best: float = 0.0) -> dict:
    tests = [{"name": "test2016", "scores": {"bleu": {"score": bleu, "signature": "s"}}}]
    validations = [{"step": 1, "validation_bleu": best - 1}, {"step": 2, "validation_bleu": best}]
    return {"recipe": {"training": {"seed": seed}}, "tests": tests, "validations": validations}


def test_mean_and_sample_standard_deviation_of_three_seeds(benchmarks):
    summary = benchmarks("multi30k_seeds").summary("x", [run(1, 40.0), run(2, 41.0), run(5, 42.0)], "do", None)
    assert summary["seeds"] == [1, 2, 5]
    score = summary["tests"][0]["scores"]["bleu"]
    # sqrt((1 + 0 + 1) / (3 - 1)) = 1
    assert (score["mean"], score["standard_deviation"], score["values"]) == (41.0, 1.0, [40.0, 41.0, 42.0])
    alone = benchmarks("multi30k_seeds").summary("x", [run(1, 40.0)], "do", None)
    assert alone["tests"][0]["scores"]["bleu"]["standard_deviation"] is None


def test_moses_tokens_are_put_together_again(benchmarks):
    lines = ["ein mann , der &quot; hallo &quot; ruft .", "der rich-text ist &apos;s wert ."]
    assert benchmarks("multi30k_seeds").detokenised(lines, "de") == [
        'ein mann, der "hallo" ruft.',
        "der rich-text ist 's wert.",
    ]


def test_the_files_of_a_recipe_are_those_it_trains_on(benchmarks):
    seeds = benchmarks("multi30k_seeds")
    tokenised = SimpleNamespace(data=SimpleNamespace(test="tok/test_2016_flickr.lc.norm.tok.{lang}.gz"))
    raw = SimpleNamespace(data=SimpleNamespace(test="test_2016_flickr.{lang}.gz"))
    name = "test_2017_mscoco"
    assert seeds.text(tokenised, name, "de").parts[-2:] == ("tok", "test_2017_mscoco.lc.norm.tok.de.gz")
    assert seeds.text(tokenised, name, "de", raw=True).parts[-2:] == ("multi30k", "test_2017_mscoco.de.gz")
    assert seeds.text(raw, name, "de") == seeds.text(tokenised, name, "de", raw=True)


def test_the_best_model_is_chosen_on_dev(benchmarks, tmp_path, monkeypatch):
    best_model = benchmarks("best_model")
    monkeypatch.setattr(best_model, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="multi30k-best.seeds.json is missing"):
        best_model.chosen()
    # the second seed is best on dev, the first one on test
    for seed, bleu, dev in ((1, 43.0, 40.0), (2, 41.0, 40.5)):
        (tmp_path / f"multi30k-best-seed{seed}.json").write_text(json.dumps(run(seed, bleu, dev)), encoding="utf-8")
    summary = {"seeds": [1, 2], "chosen": {"length_penalty": 1.4}}
    (tmp_path / "multi30k-best.seeds.json").write_text(json.dumps(summary), encoding="utf-8")
    assert best_model.chosen() == (2, 1.4)


def test_sides_are_compared_on_the_same_sentences(benchmarks, tmp_path):
    peers = benchmarks("multi30k_peers")
    references = [f"ein mann mit {n} hunden geht nach haus ." for n in range(120)]
    wrong = [line.replace("hunden", "katzen") for line in references]
    ours, equal = ([*references[:n], wrong[n], *references[n + 1 :]] for n in (0, 1))
    for name, lines in (("ours", ours), ("marian", wrong), ("joeynmt", equal)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "test2016.hypotheses.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        curve = [{"step": 1, "minutes": 2.0, "bleu": 10.0}, {"step": 2, "minutes": 4.0, "bleu": 31.0}]
        (folder / "curve.json").write_text(json.dumps(curve), encoding="utf-8")
        system = {"system": name, "updates": 2, "minutes": 4.0, "parameters": 1000}
        (folder / "system.json").write_text(json.dumps(system), encoding="utf-8")
    rows = peers.compare([tmp_path / name for name in ("ours", "marian", "joeynmt")], references)
    assert rows[1]["bleu"] < 80 < 98 < rows[0]["bleu"] == pytest.approx(rows[2]["bleu"])
    # always worse than ours; as good, by another sentence
    assert rows[1]["p_value_against_ours"] < 0.01 < 0.1 < rows[2]["p_value_against_ours"]
    assert rows[0]["minutes_to_dev_bleu"] == {"20": 4.0, "30": 4.0, "35": None, "38": None, "40": None}
    text = peers.report({"command": "do", "minutes": 4, "systems": rows})
    assert "| marian | 1,000 | 2 | " in text and "| 4.0 | 4.0 | never | never | never |" in text


def test_joeynmt_is_told_the_published_setting(benchmarks, tmp_path, shared_data):
    import yaml

    peers, side = benchmarks("multi30k_peers"), benchmarks("multi30k_joeynmt")
    shared_data("multi30k_bpe_revisit")
    given = peers.settings(SimpleNamespace(smoke=True, minutes=1, float32=True))
    config = yaml.safe_load(side._write_data(tmp_path, given).read_text(encoding="utf-8"))
    training, encoder = config["training"], config["model"]["encoder"]
    assert training["batch_size"] * training["batch_multiplier"] == 8192
    assert (training["learning_rate"], training["learning_rate_warmup"]) == (0.005, 2000)
    assert (encoder["num_layers"], encoder["hidden_size"], encoder["ff_size"], encoder["dropout"]) == (4, 128, 256, 0.3)
    assert len((tmp_path / "train.de").read_text(encoding="utf-8").splitlines()) == given["limit"]
    (tmp_path / "validations.txt").write_text("Steps: 200\tloss: 3.1\tacc: 0.2\tppl: 9.0\tbleu: 12.5\t*\n")
    assert side._validations(tmp_path / "validations.txt") == [(200, 12.5)]


def test_a_learning_curve_s_page_by_hand(benchmarks):
    curve = benchmarks("learning_curve")
    point = {
        "pairs": 2000,
        "training_minutes": 3.25,
        "chosen_on_dev": {"length_penalty": 1.4, "bleu_on_dev": {"1.0": 5.0, "1.4": 6.0}},
        "test": {"bleu": {"score": 7.125, "signature": "sig"}, "chrf": {"score": 20.0, "signature": "c"}},
    }
    text = curve.report({"name": "x", "command": "do", "points": [point]})
    assert "| 2,000 | 3.2 | 1.4 | 6.00 | 7.12 | 20.00 |" in text
    assert text.endswith("Signature: `sig`\n")


@pytest.mark.integration
def test_the_penalty_with_the_best_bleu_on_dev_is_chosen(benchmarks, trained):
    module = benchmarks("choose_alpha")
    chosen = module.choose_alpha(trained.run / "final", list(trained.pairs), list(trained.pairs.values()), beams=2)
    assert chosen["bleu_on_dev"].keys() == {str(alpha) for alpha in module.ALPHAS}
    # learned by heart, so that every penalty gives the same and the smallest one is taken
    assert len(set(chosen["bleu_on_dev"].values())) == 1
    assert chosen["length_penalty"] == module.ALPHAS[0]
    assert "tok:zh" in chosen["signature"]


@pytest.mark.integration
def test_a_finished_run_is_recorded_with_what_it_was_scored_against(benchmarks, trained, tmp_path, monkeypatch):
    record, runs = benchmarks("record"), benchmarks("training_runs")
    assert runs.finished(trained.run) and not runs.finished(tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "in_shared_data", lambda path: Path(path).name)
    record.record(trained.run, "six", "memorise", "a remark", tests=["test"])
    result = json.loads((tmp_path / "six.json").read_text(encoding="utf-8"))
    assert (result["name"], result["recipe_name"], result["updates"]) == ("six", "memorise", 150)
    [test] = result["tests"]
    hypotheses = (tmp_path / test["hypotheses_file"]).read_bytes()
    assert hypotheses == (trained.run / "results" / "test.hypotheses.txt").read_bytes()
