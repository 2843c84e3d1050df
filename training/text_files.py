"""Text from files, strictly: UTF-8 only, plain or gzip, and every fault names file and line.

A line ends at "\\n" and nowhere else: U+2028, U+0085 and form feeds are part of a sentence. A "\\r" before the "\\n"
and a byte order mark at the start of a file are not. Lines are generated, so memory does not grow with the file.
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from vanilla_transformer.configuration.errors import CorpusError

# Longer "lines" are files that are no text; a line is held in memory, so there must be an end.
MAX_LINE_BYTES = 64 * 2**20

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
DAMAGED_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)


def open_bytes(path: str | Path) -> BinaryIO:
    """The file's content as a byte stream, decompressed if it begins like gzip, whatever its name says."""
    stream = open(path, "rb")
    try:
        # peek, not seek: the path may be a pipe
        if stream.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] != GZIP_MAGIC:
            return stream
        unzipped = gzip.GzipFile(fileobj=stream)
        # so that closing the decompressor closes the file
        unzipped.myfileobj = stream  # type: ignore[assignment]
        return unzipped  # type: ignore[return-value]
    except BaseException:
        stream.close()
        raise


def unreadable(path: str | Path, error: Exception, line: int | None = None) -> CorpusError:
    """The error for a file that the operating system or gzip cannot deliver."""
    where = f"{path}:{line}" if line else f"{path}"
    if isinstance(error, DAMAGED_GZIP):
        return CorpusError(f"{where}: the gzip data is cut short or damaged ({error}); copy the file again")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CorpusError(f"{where}: cannot be read ({reason})")


def file_sha256(path: str | Path) -> str:
    """Hash of the file as it lies on the disk, compressed or not."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def iterate_lines(path: str | Path) -> Iterator[str]:
    """Lines of a UTF-8 file, plain or gzip, without their line ends.

    Raises CorpusError, naming the line, for a missing or empty file, invalid UTF-8, NUL bytes (binary files, UTF-16),
    damaged gzip data and lines above MAX_LINE_BYTES.
    """
    number = 0
    try:
        with open_bytes(path) as stream:
            for line in decoded_lines(stream, path):
                yield line
                number += 1
    except (*DAMAGED_GZIP, OSError) as error:
        raise unreadable(path, error, number + 1 if isinstance(error, DAMAGED_GZIP) else None) from error
    if not number:
        raise CorpusError(f"{path}: the file is empty")


def decoded_lines(stream: BinaryIO, name: str | Path) -> Iterator[str]:
    """Lines of a stream of UTF-8 text, called `name` in errors, as they come; raises CorpusError as iterate_lines."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            if raw.startswith(UTF16_MARKS):
                raise CorpusError(f"{name}:1: looks like UTF-16; convert it to UTF-8")
            raw = raw.removeprefix(BYTE_ORDER_MARK)
            if not raw:
                return
        yield _decode(raw, name, number)


def _decode(raw: bytes, path: str | Path, number: int) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise CorpusError(
            f"{path}:{number}: a line of more than {MAX_LINE_BYTES // 2**20} MiB; this is not a text file"
        )
    if b"\0" in raw:
        raise CorpusError(f"{path}:{number}: NUL byte at column {raw.index(0) + 1}; this is not UTF-8 text")
    if raw.endswith(b"\n"):
        raw = raw[:-1].removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}:{number}: not valid UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1}); "
            "convert it to UTF-8"
        ) from None


def read_lines(path: str | Path) -> list[str]:
    """All lines of a UTF-8 file, plain or gzip; raises what iterate_lines raises."""
    return list(iterate_lines(path))


def read_aligned(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    """Line n of one file with line n of the other; raises CorpusError if one file is longer."""
    lines = iterate_lines(source), iterate_lines(target)
    for number, (source_line, target_line) in enumerate(zip_longest(*lines), start=1):
        if source_line is None or target_line is None:
            shorter, longer = (source, target) if source_line is None else (target, source)
            total = number + sum(1 for _ in lines[0 if longer == source else 1])
            raise CorpusError(
                f"{longer}:{number}: no such line in {shorter}; line-aligned files need equally many lines, "
                f"and these have {total:,} and {number - 1:,}"
            )
        yield source_line, target_line


def one_line(text: str) -> str:
    """The text with every run of line breaks, and the spaces around it, as one space.

    Sentences are lines everywhere else (hypotheses, references), and formats with quoting can hold breaks inside one.
    """
    if "\n" not in text and "\r" not in text:
        return text
    return " ".join(part for line in re.split(r"[\r\n]+", text) if (part := line.strip(" \t")))


def checked(text: object, where: str) -> str:
    """`text` on one line; raises CorpusError if it is no string or can't be UTF-8 text."""
    if not isinstance(text, str):
        raise CorpusError(f"{where}: expected text, found {type(text).__name__}")
    if "\0" in text:
        raise CorpusError(f"{where}: NUL character at column {text.index(chr(0)) + 1}; this is not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(f"{where}: half of a surrogate pair at column {error.start + 1}; not valid Unicode") from None
    return one_line(text)
