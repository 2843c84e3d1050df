"""What the translation study makes of its runs: lengths, times, means over seeds."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.ladder import corpus_runs, translation
from vanilla_transformer.training.ladder.corpus_runs import log_rows, merged, model_section, seconds_to
from vanilla_transformer.training.ladder.systems import SYSTEMS, matched_config
from vanilla_transformer.training.recipe import recipe_from_mapping
from vanilla_transformer.training.run_folder import RunFolder


def row(system: str, seed: int, bleu: float, reached: float | None) -> dict:
    interval = {"low": bleu - 1, "high": bleu + 2, "level": 0.95}
    return {
        "corpus": "m30k",
        "system": system,
        "seed": seed,
        "parameters": 1000,
        "d_model": 64,
        "learning_rate": 0.002,
        "updates": 10,
        "training_seconds": 120.0 * seed,
        "tokens_per_second": 100.0 * seed,
        "sentences_per_second": 5.0,
        "scores": {"bleu": {"score": bleu, "confidence_interval": interval, "signature": "sig|tok:13a"}},
        "buckets": [
            {"from": 1, "to": 4, "mean_length": 3.0, "sentences": 6, "score": bleu, "confidence_interval": interval},
            {"from": 5, "to": 9, "mean_length": 7.0, "sentences": 1, "score": bleu / 2},
        ],
        "seconds_to_bleu": {"5": reached, "50": None},
        "validations": [{"step": 5, "seconds": 60.0, "validation_loss": 2.0, "validation_bleu": bleu}],
    }


ROWS = [row("transformer", 1, 30.0, 60.0), row("gru", 2, 12.0, None), row("gru", 1, 10.0, 90.0)]


def test_tables_hold_means_over_seeds_in_the_ladder_s_order():
    scores, lengths, cost = translation.tables(ROWS)
    assert scores.title == "m30k: test scores"
    # (10 + 12) / 2; the interval's ends are 9 and 12 of one seed, 11 and 14 of the other
    assert scores.rows == [
        ["gru", 1000, 64, 0.002, "11.00", "10.0–13.0", "10.00 12.00"],
        ["transformer", 1000, 64, 0.002, "30.00", "29.0–32.0", "30.00"],
    ]
    assert "BLEU: sig|tok:13a" in scores.note
    assert lengths.columns == ["system", "1–4 (6)", "5–9 (1)"]
    assert lengths.rows[0] == ["gru", "11.0 ±1.5", "5.5 ±0.0"]
    # tokens/s of 100 and 200; minutes of 2 and 4; BLEU 5 after 90 s by one of the seeds
    assert cost.columns[-2:] == ["to BLEU 5", "to BLEU 50"]
    assert cost.rows == [
        ["gru", 10, 150, "3.00", "5.0", "1.50 (1 of 2 seeds)", None],
        ["transformer", 10, 100, "2.00", "5.0", "1.00", None],
    ]


def test_plots_show_each_system():
    by_length, by_time = translation.plots(ROWS)
    gru, transformer = by_length.series
    assert (gru.label, gru.x, gru.y, gru.spread) == ("gru", (3.0, 7.0), (11.0, 5.5), (1.5, 0.0))
    assert transformer.label == "transformer"
    assert [(one.label, one.x, one.y) for one in by_time.series] == [
        ("gru", [1.0], [10.0]),
        ("transformer", [1.0], [30.0]),
    ]
    assert by_length.name != by_time.name


def test_a_half_finished_study_is_reported():
    assert [table.title for table in translation.tables(ROWS[:1])] == [
        *("m30k: test scores", "m30k: BLEU by source length", "m30k: cost"),
    ]


def test_time_is_that_of_updates_reckoned_from_the_logged_speed(tmp_path: Path):
    run = RunFolder(tmp_path)
    rows = [
        {"step": 10, "tokens_per_second": 100.0},
        {"step": 15, "tokens_per_second": 50.0, "validation_bleu": 4.0},
        {"step": 20, "tokens_per_second": 100.0, "validation_bleu": 6.0},
    ]
    run.metrics.write_text("".join(json.dumps(one) + "\n" for one in rows))
    run.manifest.write_text(json.dumps({"tokens_seen": {"source": 300, "target": 700}}))
    # 1000 tokens in 20 updates are 50 in each: 500 at 100 a second, 250 at 50, 250 at 100
    timed = log_rows(run)
    assert [one["seconds"] for one in timed] == [5.0, 10.0, 12.5]
    assert [seconds_to(timed, bleu) for bleu in (4.0, 5.0, 7.0)] == [10.0, 12.5, None]


def test_buckets_hold_every_test_sentence_once(monkeypatch: pytest.MonkeyPatch):
    lengths = [1, 1, 2, 3, 3, 3, 8, 9]
    sources = [" ".join("w" * length) for length in lengths]
    corpus = SimpleNamespace(
        pairs=lambda split: (sources, [f"one two three four {i}" for i in range(8)]),
        tokenizer=lambda texts: {"input_ids": [[5] * len(text.split()) + [2] for text in texts]},
    )
    hypotheses = [f"one two three four {i}" for i in range(6)] + ["nothing", "nothing"]
    buckets = translation._buckets(corpus, hypotheses, [0.25, 0.5, 0.75], "de")
    # the lower quantiles of 8 lengths at 7/4, 7/2 and 21/4 are 1, 3 and 3
    assert [(one["from"], one["to"], one["sentences"]) for one in buckets] == [(1, 1, 2), (2, 3, 4), (4, 9, 2)]
    assert [one["mean_length"] for one in buckets] == [1.0, 2.75, 8.5]
    assert [round(one["score"]) for one in buckets] == [100, 100, 0]


@pytest.mark.parametrize("name", ["lstm-attention", "transformer"])
def test_a_config_comes_back_from_the_recipe_that_it_is_written_to(name: str):
    base = {"num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "dropout": 0.25}
    config = matched_config(SYSTEMS[name], 60_000, vocab_size=100, base=base)
    data = {"corpus": "reverse", "source_lang": "a", "target_lang": "b"}
    recipe = recipe_from_mapping({"data": data, "model": model_section(config)})
    assert recipe.model.to_config(100).to_dict() == config.to_dict()


def test_later_sections_win_key_by_key():
    first = {"training": {"seed": 1, "max_steps": 5}, "data": {"corpus": "a"}}
    assert merged(first, {"training": {"seed": 2}, "model": {"d_model": 4}}) == {
        "training": {"seed": 2, "max_steps": 5},
        "data": {"corpus": "a"},
        "model": {"d_model": 4},
    }
    assert first["training"]["seed"] == 1


def test_the_settings_of_a_cell_leave_out_seeds_and_where_the_data_lies():
    def study(corpus: str, seeds: list[int], **more) -> translation.TranslationStudy:
        corpora = {"a": {"data": {"corpus": corpus, "max_length": 50}}}
        return translation.TranslationStudy(corpora, seeds=seeds, **more)

    assert study("/here/m30k", [1]).decided() == study("/there/m30k", [1, 2]).decided()
    assert study("m30k", [1]).decided() != study("m30k", [1], training={"max_steps": 3}).decided()


def test_a_corpus_without_test_pairs_is_named():
    prepared = SimpleNamespace(test=None)
    corpus = corpus_runs.SharedCorpus({"data": {"corpus": "m30k"}}, prepared)
    with pytest.raises(UsageError, match=r"data.corpus = m30k: has no test split"):
        corpus.pairs("test")
