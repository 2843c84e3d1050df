"""RUN/metrics.jsonl: one JSON object a logged step, never a row lost or doubled over kill and resume."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.errors import UserError


def numbers(row: dict[str, Any]) -> dict[str, int | float]:
    """What a tracker is given of a row, beside its step."""
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}


class MetricsLog:
    """Appends rows to a JSON Lines file and knows how many bytes and rows it holds; only the main process owns one."""

    def __init__(self, path: Path, size: int = 0, rows: int = 0):
        """Continue `path` after its first `size` bytes and `rows` rows, cutting off what was written after them.

        Raises UserError when the file is shorter than that, as rows would be missing, or cannot be written.
        """
        self._path, self.size, self.rows = path, size, rows
        with self._explained():
            self._file = open(path, "a+b", buffering=0)
        if path.stat().st_size < size:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, but the checkpoint was saved when it had {size}: rows are "
                "missing. Put the whole file back, or start a new run in another folder."
            )
        self._file.truncate(size)  # what is appended goes to the new end

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; a value that is not a finite number is written as null, since JSON has no NaN."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        line = json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self.size += len(line)
        self.rows += 1
        with self._explained():
            while line:  # a disk that is nearly full may take a part of it
                line = line[self._file.write(line) :]

    def sync(self) -> tuple[int, int]:
        """Force all rows to disk, so that no checkpoint outlives the rows it counts; returns their bytes and number."""
        with self._explained():
            os.fsync(self._file.fileno())
        return self.size, self.rows

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path} could not be written: {error}. The checkpoints are untouched; make room or mend the "
                "folder, then continue with --resume."
            ) from error

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
