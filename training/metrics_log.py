"""RUN/metrics.jsonl: one JSON object a logged step, never a row lost or doubled over kill and resume."""

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.durable import is_at
from vanilla_transformer.training.write_errors import WriteError, explained

logger = logging.getLogger(__name__)

ADVICE = "The checkpoints are untouched; make room or mend the folder, then continue with --resume."


def numbers(row: dict[str, Any]) -> dict[str, int | float]:
    """What a tracker is given of a row, beside its step."""
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}


class MetricsLog:
    """Appends rows to a JSON Lines file and knows how many bytes and rows it holds; only the main process owns one.

    Rows wait in memory until a checkpoint has counted them and they are on the disk, `sync`: what the file system
    refuses before that is written later, with nothing lost.
    """

    def __init__(self, path: Path, size: int = 0, rows: int = 0):
        """Continue `path` after its first `size` bytes and `rows` rows, cutting off what was written after them.

        Raises UserError when the file is shorter than that, as rows would be missing, WriteError when it cannot be
        written.
        """
        self._path, self.size, self.rows = path, size, rows
        self._safe = size  # bytes that are on the disk for certain
        self._waiting = b""  # those after them
        self._written = 0  # how many of the waiting bytes are in the file, -1 where it is not known
        self._warned = False
        with explained(str(path), ADVICE):
            self._file = open(path, "a+b", buffering=0)
            found = os.fstat(self._file.fileno()).st_size
            if found < size:
                raise UserError(
                    f"{path} has {found} bytes, but the checkpoint was saved when it had {size}: rows are missing. Put "
                    "the whole file back, or start a new run in another folder."
                )
            self._file.truncate(size)  # what is appended goes to the new end

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; a value that is not a finite number is written as null, since JSON has no NaN."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        line = json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self._waiting += line
        self.size += len(line)
        self.rows += 1
        try:
            with explained(str(self._path), ADVICE):
                self._append()
        except WriteError as error:
            if not self._warned:
                logger.warning(f"{error.happened} Its rows are kept in memory until the next checkpoint needs them.")
            self._warned = True

    def sync(self) -> tuple[int, int]:
        """Force all rows to disk, so that no checkpoint outlives the rows it counts; returns their bytes and number.

        Raises WriteError where the file system refuses; then it may be called again.
        """
        with explained(str(self._path), ADVICE):
            self._put_back()
            self._append()
            self._written = -1  # a failed fsync may have thrown away what it could not write
            os.fsync(self._file.fileno())
        self._safe, self._waiting, self._written, self._warned = self.size, b"", 0, False
        return self.size, self.rows

    def _append(self) -> None:
        """Write the bytes that wait; after an error all of them, behind those that are safe."""
        written, self._written = self._written, -1
        if written < 0:
            self._file.truncate(self._safe)
            written = 0
        while written < len(self._waiting):  # a disk that is nearly full may take a part of them
            written += self._file.write(self._waiting[written:])
        self._written = written

    def _put_back(self) -> None:
        """Begin the file anew where it was deleted or replaced: what it held is still in the one that is open."""
        if is_at(self._file.fileno(), self._path):
            return
        file = open(self._path, "a+b", buffering=0)
        self._file.seek(0)
        self._waiting = self._file.read(self._safe) + self._waiting
        self._safe, self._written = 0, -1
        self._file.close()
        self._file = file
        logger.warning(f"{self._path} was deleted or replaced and is written again.")

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
