"""CTranslate2's model.bin: named arrays, in binary versions 2 to 6. No code is in it, and the engine is not needed.

After the version come the model's kind and revision, then the variables; from version 3 on other names for some of them
follow. Numbers are little-endian, strings have their length before them and a zero byte at their end.
"""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VERSIONS = range(2, 7)
# By type number, from version 4 on; bfloat16, number 5, is no type of numpy's.
TYPES = ("<f4", "<i1", "<i2", "<i4", "<f2")
# By the size of an item, before.
OLD_TYPES = {4: "<f4", 2: "<i2", 1: "<i1"}


@dataclass(frozen=True)
class CTranslate2File:
    """The model's kind, such as TransformerSpec, the revision of its layout, and its arrays by name."""

    kind: str
    revision: int
    variables: dict[str, np.ndarray]


def read_file(path: Path) -> CTranslate2File:
    """Read model.bin, plain or gzipped. Raises ValueError for anything else, or where it ends too early."""
    data = path.read_bytes()
    reader = _Reader(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    version = reader.number("I")
    if version not in VERSIONS:
        raise ValueError(f"binary version {version}; versions {VERSIONS[0]} to {VERSIONS[-1]} are known")
    kind, revision = reader.text(), reader.number("I")
    variables = dict(reader.variable(version) for _ in range(reader.number("I")))
    if version >= 3:
        for _ in range(reader.number("I")):
            alias, name = reader.text(), reader.text()
            variables[alias] = variables[name]
    return CTranslate2File(kind, revision, variables)


class _Reader:
    def __init__(self, data: bytes):
        self.data, self.place = data, 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.place : self.place + size]
        if len(piece) < size:
            raise ValueError("the file ends too early")
        self.place += size
        return piece

    def number(self, kind: str) -> int:
        kind = f"<{kind}"
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def text(self) -> str:
        return self.take(self.number("H"))[:-1].decode("utf-8")

    def variable(self, version: int) -> tuple[str, np.ndarray]:
        name = self.text()
        shape = [self.number("I") for _ in range(self.number("B"))]
        if version >= 4:
            kind = self.number("B")
            if kind >= len(TYPES):
                raise ValueError(f"{name} has type number {kind}, of which {len(TYPES) - 1} is the last one known")
            dtype, size = np.dtype(TYPES[kind]), self.number("I")
        else:
            item = self.number("B")
            if item not in OLD_TYPES:
                raise ValueError(f"{name} has items of {item} bytes")
            dtype, size = np.dtype(OLD_TYPES[item]), item * self.number("I")
        return name, np.frombuffer(self.take(size), dtype).reshape(shape)
