"""Cases of docs/bad_inputs.md: text and corpora."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
from bad_inputs_bench import ENGLISH, GERMAN, RECIPE, Bench, Case, row

# Text

row("misaligned")(
    lambda b: b.prepare(
        files={"train.de": GERMAN + "eins\nzwei\n"},
        values={"longer": b.folder / "data/train.de", "line": 7, "shorter": b.folder / "data/train.en", "n": 8, "m": 6},
    )
)
row("empty-file")(lambda b: b.german(""))
row("binary-file")(lambda b: b.german(b"\x89PNG\r\n\x1a\n\0\0", line=1))
row("other-encoding")(lambda b: b.german("eins\nHäuser\n".encode("latin-1"), line=2))
row("utf-16")(lambda b: b.german(GERMAN.encode("utf-16")))
row("nul-byte")(lambda b: b.german("Haus 1\nHaus 2\0\n", line=2))
row("byte-order-mark")(lambda b: b.counted(b"\xef\xbb\xbf" + GERMAN.encode(), 6))
row("crlf")(lambda b: b.counted(GERMAN.replace("\n", "\r\n"), 6))
row("line-separator")(lambda b: b.counted(GERMAN.replace(" ", "\u2028").replace("5", "\x85"), 6))
row("long-line")(lambda b: b.counted(GERMAN.replace("2", "2" * 200_000), 5, over_long=1))
row("blank-lines")(lambda b: b.counted(GERMAN.replace("Haus Nummer 2", " "), 5, empty=1))


@row("long-dev-line")
def _(b: Bench) -> Case:
    names = b.folder / "data/dev.en", b.folder / "data/dev.de"
    files = {"dev.en": ENGLISH, "dev.de": GERMAN.replace("Haus Nummer 2", "2" * 200_000)}
    return b.prepare(files=files, values={"source": names[0], "target": names[1], "line": 3})


row("gzip-cut")(lambda b: b.german(gzip.compress(GERMAN.encode(), mtime=0)[:-9], line=7))
row("tsv-columns")(lambda b: b.one_file("train.tsv", "a\tb\na b\n", line=2))
row("jsonl-row")(lambda b: b.one_file("train.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"\n', line=2))
row("jsonl-language")(lambda b: b.one_file("train.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"}\n', line=2))
row("jsonl-value")(lambda b: b.one_file("train.jsonl", '{"en": "a", "de": 3}\n', line=1))
row("jsonl-surrogate")(lambda b: b.one_file("train.jsonl", '{"en": "a", "de": "b\\ud800"}\n', line=1))


def parquet(rows: list[dict[str, str]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


row("parquet-columns")(lambda b: b.one_file("train.parquet", parquet([{"text": "a", "label": "b"}])))
row("parquet-cut")(lambda b: b.one_file("train.parquet", parquet([{"en": "a", "de": "b"}])[:-9]))


def tmx(doctype: str = "", source: str = "a", language: str = "de") -> str:
    unit = f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="{language}"><seg>b</seg></tuv></tu>'
    return f'{doctype}<tmx version="1.4"><body>{unit}</body></tmx>'


# A billion laughs, ten to the tenth times "ha"; were it expanded, the test would not end.
LAUGHS = '<!ENTITY l0 "ha">' + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 11))
row("tmx-expanding")(lambda b: b.one_file("train.tmx", tmx(f"<!DOCTYPE tmx [{LAUGHS}]>", "&l10;"), line=1))


@row("tmx-reaching")
def _(b: Bench) -> Case:
    secret = b.write("secret", "not for the model")
    case = b.one_file("train.tmx", tmx(f'<!DOCTYPE tmx [<!ENTITY x SYSTEM "file://{secret}">]>', "&x;"), line=1)
    case.expect = lambda result: "not for the model" not in result.err
    return case


row("tmx-broken")(lambda b: b.one_file("train.tmx", tmx()[:-20], line=1))
row("tmx-languages")(lambda b: b.one_file("train.tmx", tmx(language="fr")))

# Corpora

row("corpus-missing")(
    lambda b: Case(
        ("prepare", b.write("my.yaml", RECIPE), "--output-dir", "run", "--set", "data.corpus=./nowhere"),
        {"path": "./nowhere"},
    )
)
row("corpus-empty")(
    lambda b: b.prepare(files={"train.en": None, "train.de": None, "notes.md": "x"}, values={"files": "notes.md"})
)
row("counterpart-missing")(lambda b: b.prepare(files={"train.de": None}, values={"folder": b.folder / "data"}))
row("unknown-format")(lambda b: b.prepare("--set", "data.train=pairs.csv", files={"pairs.csv": "a,b\n"}))
row("ambiguous-files")(
    lambda b: b.prepare(files={"train.tsv": "a\tb\n"}, values={"files": "train.en+train.de or train.tsv"})
)
row("same-language")(lambda b: b.prepare("--set", "data.target_lang=en", files={}))
row("same-text")(
    lambda b: b.prepare(
        files={"train.de": ENGLISH}, values={"source": b.folder / "data/train.en", "target": b.folder / "data/train.de"}
    )
)
row("empty-dev")(lambda b: b.prepare(files={"dev.en": "", "dev.de": ""}, values={"file": b.folder / "data/dev.en"}))
row("blank-dev")(lambda b: b.prepare(files={"dev.en": "\n\n", "dev.de": " \n \n"}))
row("nothing-left")(lambda b: b.prepare("--set", "data.max_length=1", files={}))
row("small-vocabulary")(
    lambda b: b.prepare("--set", "tokenizer.type=bpe", "--set", "tokenizer.vocab_size=100", files={})
)
