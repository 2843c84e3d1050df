import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.readers import file_format, read_pairs

PAIRS = [("A house.", "Ein Haus."), ('"quoted"', "\u201ezitiert\u201c"), ("a\u2028b", "\u6c34")]
ROWS = [{"en": source, "de": target} for source, target in PAIRS]
NESTED = [{"id": n, "translation": {**row, "fr": "x"}} for n, row in enumerate(ROWS)]


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=n % 2 == 0) + "\n" for n, row in enumerate(rows)).encode()


@pytest.fixture
def pairs_of(tmp_path):
    def read(name: str, content: bytes | None = None, languages: tuple[str, str] = ("en", "de")):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        return list(read_pairs([tmp_path / name], *languages))

    return read


def parquet(tmp_path, name: str, rows: list[dict], **options) -> None:
    pq.write_table(pa.Table.from_pylist(rows, **options), tmp_path / name)


def test_tsv_is_two_columns_without_quoting(pairs_of):
    content = "".join(f"{source}\t{target}\n" for source, target in PAIRS).encode()
    assert pairs_of("a.tsv", content) == PAIRS
    assert pairs_of("a.tsv.gz", gzip.compress(content)) == PAIRS
    assert pairs_of("b.TSV", content.replace(b"\n", b"\r\n")) == PAIRS


def test_jsonl_nested_and_flat(pairs_of):
    assert pairs_of("a.jsonl", lines(ROWS)) == PAIRS
    assert pairs_of("b.jsonl", lines(NESTED)) == PAIRS
    assert pairs_of("c.json.gz", gzip.compress(lines(NESTED))) == PAIRS
    assert pairs_of("a.jsonl", languages=("de", "en-US")) == [(target, source) for source, target in PAIRS]


def test_parquet_nested_and_flat(pairs_of, tmp_path):
    parquet(tmp_path, "flat.parquet", [{"score": 1.0, **row} for row in ROWS])
    parquet(tmp_path, "nested.parquet", NESTED)
    (tmp_path / "zipped.parquet.gz").write_bytes(gzip.compress((tmp_path / "nested.parquet").read_bytes()))
    for name in ("flat.parquet", "nested.parquet", "zipped.parquet.gz"):
        assert pairs_of(name) == PAIRS
    parquet(tmp_path, "holes.parquet", [ROWS[0], {"en": None, "de": "x"}, {"en": "x", "de": None}])
    assert pairs_of("holes.parquet") == [PAIRS[0], (None, "x"), ("x", None)]


def test_a_break_inside_a_sentence_is_one_space(pairs_of):
    assert pairs_of("a.jsonl", lines([{"en": "a\r\n b\n", "de": "c"}])) == [("a b", "c")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"a\tb\nonly one\n", "a.tsv:2: 1 column instead of 2"),
        ("a.tsv", b"a\tb\tc\n", "a.tsv:1: 3 columns instead of 2"),
        ("a.tsv", b"a\tb\n\n", "a.tsv:2: 1 column instead of 2"),
        ("a.tsv", b"", "a.tsv: the file is empty"),
        ("a.jsonl", b'{"en": "a", "de": "b"}\n{"en": "a"\n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"en": "a", "de": "b"}\n\n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: expected a JSON object, found list"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: not valid JSON"),
        ("a.jsonl", b'{"en": "a", "fr": "b"}\n', "a.jsonl:1: no language 'de'; found en, fr"),
        ("a.jsonl", b'{"en": "a", "de": null}\n', "a.jsonl:1: expected text, found NoneType"),
        ("a.jsonl", b'{"en": "a", "de": 5}\n', "a.jsonl:1: expected text, found int"),
        ("a.jsonl", b'{"en": "a", "de": "\\u0000"}\n', "a.jsonl:1: NUL character"),
        ("a.jsonl", b'{"en": "a", "de": "\\ud800"}\n', "a.jsonl:1: half of a surrogate pair"),
        ("a.jsonl", b'{"translation": "a"}\n', "a.jsonl:1: no language 'en'; found translation"),
        ("a.jsonl", b"\xff", "a.jsonl:1: not valid UTF-8"),
        ("a.parquet", b"", "a.parquet: not a whole Parquet file"),
        ("a.parquet", b"PAR1 no parquet PAR1", "a.parquet: not a whole Parquet file"),
        ("a.csv", b"a,b\n", "a.csv: unknown format; known are .tsv, .jsonl"),
    ],
)
def test_faults_name_file_and_line(pairs_of, name, content, message):
    with pytest.raises(CorpusError, match=message):
        pairs_of(name, content)


def test_faults_in_parquet(pairs_of, tmp_path):
    parquet(tmp_path, "columns.parquet", [{"text": "a", "label": "b"}])
    with pytest.raises(CorpusError, match="columns.parquet: no language 'en'; found text, label"):
        pairs_of("columns.parquet")
    parquet(tmp_path, "numbers.parquet", [{"en": "a", "de": 1}])
    with pytest.raises(CorpusError, match="numbers.parquet: row 1: expected text, found int"):
        pairs_of("numbers.parquet")
    parquet(tmp_path, "none.parquet", [], schema=pa.schema({"en": pa.string(), "de": pa.string()}))
    with pytest.raises(CorpusError, match="none.parquet: the file has no rows"):
        pairs_of("none.parquet")
    parquet(tmp_path, "whole.parquet", [{"en": str(n), "de": "x"} for n in range(5000)])
    content = (tmp_path / "whole.parquet").read_bytes()
    with pytest.raises(CorpusError, match="cut.parquet: not a whole Parquet file"):
        pairs_of("cut.parquet", content[:-100])
    with pytest.raises(CorpusError, match="cut.parquet.gz: the gzip data is cut short"):
        pairs_of("cut.parquet.gz", gzip.compress(content)[:-100])


@pytest.mark.parametrize(
    ("name", "ending"),
    [("x.tsv", ".tsv"), ("x.tmx.gz", ".tmx"), ("X.JSONL", ".jsonl"), ("train.en", None), ("x.txt.gz", None)],
)
def test_format_by_name(name, ending):
    assert file_format(name) == ending


sentences = st.text(st.characters(exclude_characters="\n\r\t\0", exclude_categories=["Cs"]))


@settings(deadline=None)
@given(st.lists(st.tuples(sentences, sentences), min_size=1))
def test_all_formats_give_the_same_pairs_in_order(tmp_path_factory, pairs):
    folder = tmp_path_factory.getbasetemp()
    # a mark at the start of a file is not text
    pairs[0] = (pairs[0][0].lstrip("\ufeff"), pairs[0][1].lstrip("\ufeff"))
    rows = [{"en": source, "de": target} for source, target in pairs]
    parquet(folder, "p.parquet", rows)
    (folder / "p.jsonl").write_bytes(lines(rows))
    (folder / "p.tsv").write_bytes("".join(f"{source}\t{target}\n" for source, target in pairs).encode())
    for side, lang in enumerate(("en", "de")):
        (folder / f"p.{lang}").write_bytes("".join(pair[side] + "\n" for pair in pairs).encode())
    for files in (["p.parquet"], ["p.jsonl"], ["p.tsv"], ["p.en", "p.de"]):
        assert list(read_pairs([folder / name for name in files], "en", "de")) == pairs
