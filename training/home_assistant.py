"""The named corpus `home-assistant`: interface text of Home Assistant 2025.1.4, translated by people into 60 languages.

The text is in the `translations/*.json` files of the wheel on PyPI (Apache-2.0). Strings pair up by their key path
within an integration. The wheel is fetched with pip but never installed, checked against a pinned SHA-256 each time
it is used, and read in place; names inside the archive are only compared, never turned into paths.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.cleaning import overlap_key
from vanilla_transformer.training.language_codes import pick_language

VERSION = "2025.1.4"
WHEEL = f"homeassistant-{VERSION}-py3-none-any.whl"
WHEEL_SHA256 = "06f273ce6e3d1973d65d67de583f1cba7fcb445a85ce9c16f3618d8cf5048b6c"

# Codes in everyday use for what the wheel calls otherwise.
ALIASES = {
    "zh": "zh-Hans",
    "zh-cn": "zh-Hans",
    "zh-sg": "zh-Hans",
    "zh-tw": "zh-Hant",
    "zh-hk": "zh-Hant",
    "no": "nb",
    "iw": "he",
}

# Of 1,000 hash values; 60 each gives about 600 dev and 1,000 test pairs for the complete languages.
TEST_SHARE, DEV_SHARE = 60, 60

# Why a string of the source language is no pair, in the order of the checks.
LEFT_OUT = ("missing_language", "empty", "reference", "same_as_source", "no_letters", "in_training", "duplicate")

ENTRY = re.compile(r"homeassistant/components/([a-z0-9_]+)/translations/([a-z0-9_]+\.)?([A-Za-z0-9-]+)\.json")


def cache_folder() -> Path:
    """Where downloads are kept: $VANILLA_TRANSFORMER_CACHE, or ~/.cache/vanilla-transformer."""
    return Path(os.environ.get("VANILLA_TRANSFORMER_CACHE") or "~/.cache/vanilla-transformer").expanduser()


def open_wheel() -> BinaryIO:
    """The verified wheel, open for reading; fetched first if the cache has none or a damaged one.

    The hash is taken from the same open file that is then read. Raises CorpusError, saying what to do, if it can't be
    fetched or is not the pinned file.
    """
    path = cache_folder() / WHEEL
    stream = _verified(path)
    if stream is None:
        _download(path)
        stream = _verified(path)
    if stream is None:
        raise CorpusError(f"{path}: not the expected file (its SHA-256 is not {WHEEL_SHA256}); delete it and try again")
    return stream


def _verified(path: Path) -> BinaryIO | None:
    try:
        stream = open(path, "rb")
        if hashlib.file_digest(stream, "sha256").hexdigest() == WHEEL_SHA256:
            return stream
        stream.close()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from error
    return None


def _download(path: Path) -> None:
    """Fetches the wheel with pip into a temporary folder beside `path`, then moves it into place in one step."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", "3.13", "--ignore-requires-python"]
    command += ["--retries", "2", "--timeout", "30", f"homeassistant=={VERSION}"]
    print(f"Fetching {WHEEL} (40 MB) from the package index ...", file=sys.stderr)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=path.parent) as folder:
            run = subprocess.run(
                [*command, "--dest", folder], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800
            )
            fetched = Path(folder) / WHEEL
            if run.returncode == 0 and fetched.is_file():
                os.replace(fetched, path)
                return
            lines = run.stderr.strip().splitlines() or ["pip gave no reason"]
            reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
    except subprocess.TimeoutExpired:
        reason = "no end after 30 minutes"
    except OSError as error:
        reason = str(error)
    raise CorpusError(
        f"The corpus home-assistant needs {WHEEL} from PyPI, and it could not be fetched: {reason.strip()}. Connect to "
        f"the network, or place the file in {path.parent} (set VANILLA_TRANSFORMER_CACHE to use another folder)."
    )


def split_of(integration: str) -> str:
    """train, dev or test: a fixed function of the integration's name, the same for every language pair."""
    value = int.from_bytes(hashlib.sha256(integration.encode()).digest()[:4], "big") % 1000
    return "test" if value < TEST_SHARE else "dev" if value < TEST_SHARE + DEV_SHARE else "train"


def read_home_assistant(
    source_lang: str, target_lang: str
) -> tuple[dict[str, list[tuple[str, str]]], dict[str, dict[str, int]]]:
    """Pairs per split, and per split the counters read, kept and LEFT_OUT.

    Whole integrations are held out; of their strings dev and test keep those whose source (compared by overlap_key)
    occurs in no training integration, and each only once: test first, then dev. Training keeps repetitions; cleaning
    counts them. Raises CorpusError for a language that the corpus lacks.
    """
    with open_wheel() as stream, zipfile.ZipFile(stream) as archive:
        entries = [(match, info) for info in archive.infolist() if (match := ENTRY.fullmatch(info.filename))]
        available = sorted({match[3] for match, _ in entries})
        texts = []
        for lang in (source_lang, target_lang):
            code = pick_language(ALIASES.get(lang.replace("_", "-").lower(), lang), available, "corpus home-assistant")
            texts.append(_strings(archive, [(m[1], m[2] or "", info) for m, info in entries if m[3] == code]))
    source, target = texts
    counters = {split: dict.fromkeys(("read", "kept", *LEFT_OUT), 0) for split in ("train", "dev", "test")}
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in counters}
    for key in sorted(source):
        split = split_of(key[0])
        counters[split]["read"] += 1
        pair = " ".join(source[key].split()), " ".join(target.get(key, "").split())
        if reason := "missing_language" if key not in target else _no_pair(*pair):
            counters[split][reason] += 1
        else:
            pairs[split].append(pair)
    known = {overlap_key(text) for text, _ in pairs["train"]}
    held_out: set[str] = set()
    for split in ("test", "dev"):
        fresh = []
        for text, translation in pairs[split]:
            key_of_text = overlap_key(text)
            if key_of_text in known or key_of_text in held_out:
                counters[split]["in_training" if key_of_text in known else "duplicate"] += 1
            else:
                held_out.add(key_of_text)
                fresh.append((text, translation))
        pairs[split] = fresh
    for split, kept in pairs.items():
        counters[split]["kept"] = len(kept)
    return pairs, counters


def _strings(archive: zipfile.ZipFile, entries: list[tuple[str, str, zipfile.ZipInfo]]) -> dict[tuple[str, ...], str]:
    """All strings of one language by (integration, file kind, key path ...)."""
    strings: dict[tuple[str, ...], str] = {}
    for integration, kind, info in entries:
        strings.update(_leaves((integration, kind), json.loads(archive.read(info))))
    return strings


def _leaves(path: tuple[str, ...], value: object) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves((*path, key), inner)
    elif isinstance(value, str):
        yield path, value


def _no_pair(source: str, target: str) -> str | None:
    """Why two strings teach no translation, or None; placeholders such as {host} stay but are no letters."""
    if not source or not target:
        return "empty"
    if "[%" in source or "[%" in target:
        return "reference"  # "[%key:common::config_flow::data::host%]" points to another string
    if source == target:
        return "same_as_source"
    if not all(any(map(str.isalpha, re.sub(r"\{[^{}]*\}", "", text))) for text in (source, target)):
        return "no_letters"
    return None
