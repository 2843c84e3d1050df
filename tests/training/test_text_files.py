import gzip
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training import text_files
from vanilla_transformer.training.text_files import checked, file_sha256, one_line, read_aligned, read_lines


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),  # no line end at the end
        (b"a\n\n", ["a", ""]),  # an empty line is a line
        (b"\n", [""]),
        (b"\xef\xbb\xbfa\r\nb\r\n", ["a", "b"]),  # byte order mark, Windows line ends
        ("a\u2028b\u0085c\x0cd\x0be\x1cf\n".encode(), ["a\u2028b\u0085c\x0cd\x0be\x1cf"]),
        (b"a\rb\n", ["a\rb"]),
        ("a\ufeffb\n\ufeffc\n".encode(), ["a\ufeffb", "\ufeffc"]),  # a mark inside the file is text
        (b"  a \t\n", ["  a \t"]),
    ],
)
def test_only_a_newline_ends_a_line(tmp_path, content, lines):
    assert read_lines(written(tmp_path, "plain", content)) == lines
    assert read_lines(written(tmp_path, "zipped.txt", gzip.compress(content))) == lines


def test_gzip_is_recognised_by_content_not_by_name(tmp_path):
    assert read_lines(written(tmp_path, "a.gz", b"plain text\n")) == ["plain text"]
    assert read_lines(written(tmp_path, "a", gzip.compress(b"one\n") + gzip.compress(b"two\n"))) == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{path}: the file is empty"),
        (b"\xef\xbb\xbf", "{path}: the file is empty"),
        (gzip.compress(b"", mtime=0), "{path}: the file is empty"),
        (b"good\nb\xe4d\n", "{path}:2: not valid UTF-8 (byte 0xe4 at column 2)"),
        (b"\xed\xa0\x80\n", "{path}:1: not valid UTF-8"),  # a surrogate
        (b"good\nNUL \0\n", "{path}:2: NUL byte at column 5"),
        ("text\n".encode("utf-16"), "{path}:1: looks like UTF-16"),
        ("text\n".encode("utf-16-be"), "{path}:1: NUL byte"),
        (b"\x89PNG\r\n\x1a\n\0\0", "{path}:1: not valid UTF-8"),
    ],
)
def test_what_is_not_text_is_named_with_its_line(tmp_path, content, message):
    path = written(tmp_path, "bad", content)
    with pytest.raises(CorpusError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(message.format(path=path))


def test_cut_or_damaged_gzip_is_an_error_wherever_the_cut_is(tmp_path):
    content = b"".join(b"line %d of this file\n" % n for n in range(200))
    whole = gzip.compress(content)
    for length in range(2, len(whole), 7):
        path = written(tmp_path, "cut.gz", whole[:length])
        with pytest.raises(CorpusError, match=r"cut.gz:\d+: the gzip data is cut short or damaged"):
            read_lines(path)
    wrong_sum = whole[:-8] + bytes(4) + whole[-4:]
    with pytest.raises(CorpusError, match=r"cut.gz:\d+: the gzip data is cut short or damaged"):
        read_lines(written(tmp_path, "cut.gz", wrong_sum))


def test_missing_files_and_folders_are_no_files(tmp_path):
    with pytest.raises(CorpusError, match="absent: cannot be read .No such file"):
        read_lines(tmp_path / "absent")
    with pytest.raises(CorpusError, match="cannot be read .Is a directory"):
        read_lines(tmp_path)
    with pytest.raises(CorpusError, match="cannot be read"):
        file_sha256(tmp_path)


def test_a_pipe_can_be_read_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(b"through a pipe\n"),))
    writer.start()
    assert read_lines(pipe) == ["through a pipe"]
    writer.join()


def test_long_lines_are_whole_and_endless_ones_refused(tmp_path, monkeypatch):
    long = "\u6c34" * 200_000
    assert read_lines(written(tmp_path, "long", f"a\n{long}\nb\n".encode())) == ["a", long, "b"]
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 2**20)
    with pytest.raises(CorpusError, match="endless:2: a line of more than 1 MiB"):
        read_lines(written(tmp_path, "endless", b"a\n" + b"x" * (2**20 + 1)))


def test_aligned_files_pair_line_by_line(tmp_path):
    source, target = written(tmp_path, "a.en", b"one\ntwo\n"), written(tmp_path, "a.de", b"eins\r\nzwei")
    assert list(read_aligned(source, target)) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize("swapped", [False, True])
def test_files_of_different_length_name_the_first_line_without_partner(tmp_path, swapped):
    files = [written(tmp_path, "long", b"1\n2\n3\n4\n"), written(tmp_path, "short", b"1\n2\n")]
    with pytest.raises(CorpusError, match="long:3: no such line in .*short; .* these have 4 and 2$"):
        list(read_aligned(*(reversed(files) if swapped else files)))


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])), min_size=1))
def test_lines_come_back_as_they_were_written(tmp_path_factory, lines):
    # a mark at the very start and a carriage return at a line's end belong to the encoding, not to the text
    lines = [line.rstrip("\r") for line in lines]
    lines[0] = lines[0].lstrip("\ufeff")
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert read_lines(path) == lines


def by_definition(content: bytes) -> list[str] | None:
    """The lines of a file, None where it is no text: UTF-8 after a possible byte order mark, without NUL, not empty."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if not text or "\0" in text:
        return None
    *lines, rest = text.split("\n")
    return [line[:-1] if line.endswith("\r") else line for line in lines] + ([rest] if rest else [])


telling = (b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"\0", b"\xc3", b"\xed\xa0\x80", "\u2028\u0085\x0c".encode())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(telling) | st.text(max_size=3).map(str.encode) | st.binary(max_size=3), max_size=10))
def test_any_bytes_are_what_the_definition_says_or_refused(tmp_path_factory, pieces):
    content = b"".join(pieces)
    path = tmp_path_factory.getbasetemp() / "any"
    for stored in (content, gzip.compress(content)):
        path.write_bytes(stored)
        try:
            found = read_lines(path)
        except CorpusError:
            found = None
        assert found == by_definition(content)


def test_breaks_inside_a_sentence_become_one_space():
    assert one_line("a \r\n\n  b\u2028c\n") == "a b\u2028c"
    assert one_line(" no  break\t") == " no  break\t"
    assert one_line("\n" + " " * 100_000 + "x") == "x"  # linear, not quadratic


def test_checked_refuses_what_no_line_can_hold():
    with pytest.raises(CorpusError, match="here: expected text, found int"):
        checked(3, "here")
    with pytest.raises(CorpusError, match="here: NUL character at column 2"):
        checked("a\0", "here")
    with pytest.raises(CorpusError, match="here: half of a surrogate pair at column 3"):
        checked("ab\ud800", "here")
