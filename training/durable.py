"""Files and folders that are whole or do not exist, whatever moment the process is killed at."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
UNFINISHED = ".unfinished-"  # a folder being written, or being deleted
REPLACED = ".replaced-"  # the former content of a folder whose successor is being put in place


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, force it to disk and rename it over `path`."""
    temporary = path.with_name(f"{UNFINISHED}{path.name}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


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
    descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield temporary
        # Libraries make a folder that is missing, and would write the rest of the files into one without the first.
        if not is_at(descriptor, temporary):
            raise OSError(errno.ENOENT, "the folder was deleted while it was being written", str(temporary))
        _sync_all(temporary)
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
    finally:
        os.close(descriptor)


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
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / MANIFEST]
    with ThreadPoolExecutor() as pool:  # hashing leaves Python's lock to others
        digests = list(pool.map(sha256, paths))
    files = {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, digests, strict=True)
    }
    write_json(folder / MANIFEST, {**fields, "files": files})


def listed(folder: Path) -> dict[str, tuple[int, str]]:
    """Name, size and SHA-256 of each file in the manifest of `folder`.

    Raises FileNotFoundError where there is no manifest, ValueError where it is not one of ours or leads out of the
    folder.
    """
    text = (folder / MANIFEST).read_bytes()
    try:
        entries = json.loads(text)["files"].items()
        files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError("cannot be read") from None
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"names a file outside the folder, {name}")
    return files


def fault(folder: Path, read: bool = True) -> str | None:
    """Why `folder` is not what its manifest says, or None when every file has the recorded size and SHA-256.

    Without `read` the sizes alone are compared, which costs nothing.
    """
    try:
        files = listed(folder)
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except OSError as error:
        return f"its {MANIFEST} cannot be read: {error.strerror}"
    except ValueError as error:
        return f"its {MANIFEST} {error}"
    for name, (size, _) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    for name, (_, digest) in files.items() if read else ():
        try:
            if sha256(folder / name) != digest:
                return f"{name} differs from its recorded SHA-256"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file or folder is still the one found under `path`: neither deleted nor replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            return False
        raise


def _sync_all(folder: Path) -> None:
    """Force a folder with all that is in it to disk, several files at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(_sync, [*folder.rglob("*"), folder]))


def _sync(path: Path) -> None:
    """Force a file, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
