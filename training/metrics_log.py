"""RUN/metrics.jsonl: one JSON object a logged step, never a row lost or doubled over kill and resume."""

import json
import math
import os
from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.errors import UserError


class MetricsLog:
    """Appends rows to a JSON Lines file and knows how many bytes and rows it holds; only the main process owns one."""

    def __init__(self, path: Path, size: int = 0, rows: int = 0):
        """Continue `path` after its first `size` bytes and `rows` rows, cutting off what was written after them.

        Raises UserError when the file is shorter than that: rows would be missing.
        """
        path.touch()
        if path.stat().st_size < size:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, but the checkpoint was saved when it had {size}: rows are "
                "missing. Put the whole file back, or start a new run in another folder."
            )
        self._file = open(path, "r+b")
        self._file.truncate(size)
        self._file.seek(size)
        self.size, self.rows = size, rows

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; a value that is not a finite number is written as null, since JSON has no NaN."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        line = json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self.size += len(line)
        self.rows += 1

    def sync(self) -> None:
        """Force all rows to disk; a checkpoint that counts them must not outlive them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
