"""Finds the files of a local corpus: from patterns with {lang} and *, or by their names in a folder."""

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from vanilla_transformer.configuration.errors import CorpusError, problems_error
from vanilla_transformer.training.readers import FORMATS, file_format

# One bilingual file, or a source and a target file.
Files = tuple[Path, ...]

SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "val", "valid", "validation"), "test": ("test",)}


def as_list(value: str | Sequence[str] | None) -> list[str]:
    """The patterns of one recipe key, which takes a pattern or a list of them."""
    return [value] if isinstance(value, str) else list(value or ())


def find_files(corpus: str | Path, patterns: dict[str, list[str]], langs: tuple[str, str]) -> dict[str, list[Files]]:
    """The files of each split of a local corpus, in reading order.

    `corpus` is a folder, a bilingual file or a text pattern with {lang}; the latter two are the training split.
    `patterns` (train, dev, test) are relative to the folder. A folder without any patterns is searched for
    train, dev|val|valid|validation and test in the known formats. Raises CorpusError with every problem found.
    """
    path = Path(corpus).expanduser()
    patterns = {split: list(given) for split, given in patterns.items() if given}
    folder = path
    if not path.is_dir():
        folder = path.parent
        if "train" in patterns:
            raise CorpusError(f"data.corpus = {corpus} is a file and data.train is given as well; give one of them")
        patterns = {"train": [path.name]} | patterns
    problems: list[str] = []
    found: dict[str, list[Files]] = {}
    for split, names in SPLIT_NAMES.items():
        if patterns:
            files = [f for pattern in patterns.get(split, ()) for f in _expand(split, pattern, folder, langs, problems)]
        else:
            files = _detect(split, names, folder, langs, problems)
        if files:
            found[split] = files
    if not problems and "train" not in found:
        problems.append(_no_training_files(folder, patterns, langs))
    if problems:
        raise problems_error(f"corpus {corpus}", problems, CorpusError)
    return found


def _no_training_files(folder: Path, patterns: dict[str, list[str]], langs: tuple[str, str]) -> str:
    if patterns:
        return f"data.train is missing ({' and '.join(f'data.{split}' for split in patterns)} given)"
    there = sorted(entry.name for entry in folder.iterdir())
    listing = ", ".join(there[:12]) + (f" and {len(there) - 12} more" if len(there) > 12 else "") or "nothing"
    return (
        f"no training files: expected train.{langs[0]} and train.{langs[1]}, or train with one of {', '.join(FORMATS)} "
        f"(plain or .gz), or data.train in the recipe; found {listing}"
    )


def _expand(split: str, pattern: str, folder: Path, langs: tuple[str, str], problems: list[str]) -> list[Files]:
    """Files for one pattern; a fault is appended to `problems`."""
    key = f"data.{split} = {pattern}"
    if "{lang}" not in pattern:
        if file_format(pattern) is None:
            problems.append(
                f"{key}: not a bilingual file ({', '.join(FORMATS)}); for a pair of text files write {{lang}} where "
                "their names have the language"
            )
            return []
        files = _matching(folder, pattern)
        if not files:
            problems.append(f"{key}: no such file in {folder}")
        return [(path,) for _, path in sorted(files.items())]
    names = [pattern.replace("{lang}", lang) for lang in langs]
    source, target = (_matching(folder, name) for name in names)
    if not source and not target:
        problems.append(f"{key}: no such files {names[0]} and {names[1]} in {folder}")
    elif source.keys() != target.keys():
        alone = {**source, **target}[min(source.keys() ^ target.keys())]
        other = names[1] if alone in source.values() else names[0]
        problems.append(f"{key}: {alone.name} has no counterpart {other} in {folder}")
        return []
    return [(source[stars], target[stars]) for stars in sorted(source)]


def _matching(folder: Path, pattern: str) -> dict[tuple[str, ...], Path]:
    """Existing files by what each * in the pattern stands for; only * is special."""
    path = folder / Path(pattern).expanduser()
    if path.exists() and not path.is_dir():
        return {(): path}
    if "*" not in pattern:
        return {}
    regex = re.compile("([^/]*)".join(re.escape(part) for part in str(path).split("*")))
    candidates = glob.glob(re.sub(r"([\[?])", r"[\1]", str(path)))
    return {
        match.groups(): Path(name) for name in candidates if (match := regex.fullmatch(name)) and Path(name).is_file()
    }


def _detect(
    split: str, names: tuple[str, ...], folder: Path, langs: tuple[str, str], problems: list[str]
) -> list[Files]:
    """Files that the folder has for a split; two candidates are a problem, since a guess may train on the wrong one."""
    choices: list[list[Files]] = []
    for name in names:
        sides = [
            [p for p in (folder / f"{name}.{lang}", folder / f"{name}.{lang}.gz") if p.is_file()] for lang in langs
        ]
        if all(sides):
            choices += [[(source, target)] for source in sides[0] for target in sides[1]]
        elif any(sides):
            alone = (sides[0] or sides[1])[0]
            problems.append(f"{alone.name} has no counterpart {name}.{langs[1] if sides[0] else langs[0]} in {folder}")
        for ending in FORMATS:
            choices += [[(p,)] for p in (folder / f"{name}{ending}", folder / f"{name}{ending}.gz") if p.is_file()]
            shards = sorted(folder.glob(f"{name}-[0-9]*-of-[0-9]*{ending}"))
            choices += [[(shard,) for shard in shards]] if shards else []
    if len(choices) > 1:
        listing = " or ".join("+".join(path.name for path in files[0]) for files in choices)
        problems.append(f"the {split} split could be {listing}; say which with data.{split}")
    return choices[0] if choices else []
