"""A ladder's file is read whole: everything wrong in it is said at once, with section, key, value and remedy."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.ladder.settings import load_ladder, read_settings, with_places
from vanilla_transformer.training.ladder.systems import SYSTEMS


@dataclass(frozen=True)
class Inner:
    size: int = 1

    def problems(self) -> list[str]:
        return [] if self.size else ["size = 0: must be at least 1"]


@dataclass(frozen=True)
class Outer:
    name: str
    lengths: tuple[int, ...] = (1, 2)
    inner: Inner = field(default_factory=Inner)

    def problems(self) -> list[str]:
        return []


def corpus(folder: Path) -> Path:
    for split in ("train", "dev", "test"):
        for lang in ("en", "de"):
            (folder / f"{split}.{lang}").write_text(f"one {lang} {split}\ntwo {lang} {split}\n")
    return folder


def ladder(folder: Path, text: str) -> Path:
    path = folder / "ladder.yaml"
    path.write_text(text)
    return path


def test_values_defaults_and_sections_within_sections():
    problems: list[str] = []
    read = read_settings(Outer, {"name": "a", "lengths": [4, 8], "inner": {"size": 3}}, "study", problems)
    assert read == Outer("a", (4, 8), Inner(3)) and not problems
    assert read_settings(Outer, {"name": "a"}, "study", problems) == Outer("a", (1, 2), Inner(1))


def test_every_wrong_key_and_value_is_named():
    problems: list[str] = []
    wrong = {"lengts": [4], "lengths": [4, "x"], "inner": {"size": 0}, "other": 1}
    assert read_settings(Outer, wrong, "study", problems) is None
    assert problems == [
        "study.lengts = [4]: unknown key; did you mean study.lengths?",
        "study.lengths = [4, 'x']: must be a list of a whole number",
        "study.inner.size = 0: must be at least 1",
        "study.other = 1: unknown key; choose from name, lengths, inner",
        "study.name: missing",
    ]
    problems.clear()
    assert read_settings(Outer, 3, "study", problems) is None and problems == ["study = 3: must map keys to values"]


def test_a_corpus_is_found_beside_the_file(tmp_path: Path):
    (tmp_path / "corpora").mkdir()
    content = {"a": {"data": {"corpus": "corpora", "train": "corpora"}}, "b": {"corpus": "home-assistant"}}
    placed = with_places(content, tmp_path)
    assert placed == {
        "a": {"data": {"corpus": str(tmp_path / "corpora"), "train": "corpora"}},
        "b": {"corpus": "home-assistant"},
    }


def test_a_file_with_one_study(tmp_path: Path):
    corpus(tmp_path)
    text = """
    ladder: {systems: [gru, transformer], threads: 1}
    translation:
      corpora:
        here:
          data: {corpus: ., source_lang: en, target_lang: de, train: "train.{lang}", test: "test.{lang}"}
          training: {max_steps: 7}
      training: {max_steps: 5, warmup_steps: 3}
      transformer: {d_model: 32, d_ff: 64, num_heads: 2}
    """
    read = load_ladder(ladder(tmp_path, text.replace("corpus: .", f"corpus: {tmp_path}")))
    assert [system.name for system in read.systems] == ["gru", "transformer"] and read.threads == 1
    [study] = read.studies
    assert study.name == "translation"
    assert study.settings.sections("here")["training"] == {"max_steps": 7, "warmup_steps": 3}


def test_everything_wrong_in_a_file_is_said_at_once(tmp_path: Path):
    text = """
    laddr: {}
    ladder: {systems: [gru, lstmm], threads: 0}
    translation:
      corpora:
        lost: {data: {corpus: ../nowhere, source_lang: en, target_lang: de}}
        flat: [1]
      training: {max_step: 5}
      transformer: {d_model: 30, num_heads: 4}
      seeds: [1, 1]
      length_quantiles: [0.5, 0.2]
      learning_rates: {gruu: 0.1, gru: fast}
    """
    with pytest.raises(UsageError) as caught:
        load_ladder(ladder(tmp_path, text))
    assert caught.value.exit_code == 2
    head, *lines = str(caught.value).splitlines()
    assert head == f"ladder {tmp_path}/ladder.yaml: 11 problems"
    starts = [line.strip().split(":")[0] for line in lines]
    assert starts == [
        "laddr",
        "ladder.systems = lstmm",
        "ladder.threads = 0",
        "translation.corpora.lost.training.max_step = 5",
        "translation.corpora.lost.data.corpus = ../nowhere",
        "translation.corpora.lost.model.num_heads = 4",
        "translation.corpora.flat",
        "translation.learning_rates.gruu",
        "translation.learning_rates.gru = fast",
        "translation.seeds = [1, 1]",
        "translation.length_quantiles = [0.5, 0.2]",
    ]
    assert "did you mean ladder?" in lines[0] and "did you mean lstm?" in lines[1]


def test_the_ladders_of_this_repository_measure_the_same_things(shared_data):
    shared_data("multi30k")
    recipes = Path(__file__).parents[3] / "recipes"
    full, smoke = (load_ladder(recipes / name) for name in ("ladder.yaml", "ladder-smoke.yaml"))
    assert [study.name for study in full.studies] == [study.name for study in smoke.studies]
    assert full.systems == smoke.systems == list(SYSTEMS.values())


def test_a_file_without_a_study_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="there is no study in it; add a section, one of translation, recall"):
        load_ladder(ladder(tmp_path, "ladder: {threads: 1}"))
