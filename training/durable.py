"""Files and folders that are whole or do not exist, whatever moment the process is killed at."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
UNFINISHED = ".unfinished-"  # a folder being written, or being deleted
REPLACED = ".replaced-"  # the former content of a folder whose successor is being put in place


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file under a temporary name, force it to disk and rename it over `path`."""
    temporary = path.with_name(f"{UNFINISHED}{path.name}")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON (NaN is refused), whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a temporary sibling of `target` to write into; on success force it to disk and rename it to `target`.

    On an error the temporary folder is removed and `target` stays as it was. An existing `target` is replaced: a
    process killed between the two renames leaves its former content beside it, and `recover` puts that back.
    """
    temporary, replaced = target.with_name(UNFINISHED + target.name), target.with_name(REPLACED + target.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in temporary.rglob("*"):
            _sync(path)
        _sync(temporary)
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(target, replaced)
        os.rename(temporary, target)
        _sync(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if not target.exists() and replaced.exists():
            os.rename(replaced, target)
        raise


def delete_folder(folder: Path) -> None:
    """Delete a folder so that, killed half-way, nothing of it is left under its own name."""
    doomed = folder.with_name(UNFINISHED + folder.name)
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def recover(parent: Path) -> None:
    """Put back what an interrupted replacement set aside in `parent`, and remove what was never finished."""
    if not parent.is_dir():
        return
    for path in parent.iterdir():
        if path.name.startswith(REPLACED):
            target = path.with_name(path.name.removeprefix(REPLACED))
            if target.exists():
                shutil.rmtree(path)
            else:
                os.rename(path, target)
        elif path.name.startswith(UNFINISHED):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_manifest(folder: Path, **fields: Any) -> None:
    """Write manifest.json: the size in bytes and the SHA-256 of every other file in `folder`, and `fields`."""
    files = {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    write_json(folder / MANIFEST, {**fields, "files": files})


def fault(folder: Path) -> str | None:
    """Why `folder` is not what its manifest says, or None when every file has the recorded size and SHA-256."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {folder / name: (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} cannot be read"
    for path, (size, _) in expected.items():  # sizes first: they cost nothing
        if not path.is_file():
            return f"{path.relative_to(folder)} is missing"
        if path.stat().st_size != size:
            return f"{path.relative_to(folder)} has {path.stat().st_size} bytes instead of {size}"
    for path, (_, digest) in expected.items():
        if sha256(path) != digest:
            return f"{path.relative_to(folder)} differs from its recorded SHA-256"
    return None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Force a file, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
