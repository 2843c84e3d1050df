import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.tmx import read_tmx

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def unit(**texts: str) -> str:
    variants = (f'<tuv xml:lang="{lang.replace("_", "-")}"><seg>{text}</seg></tuv>' for lang, text in texts.items())
    return f"<tu>{''.join(variants)}</tu>\n"


def document(*units: str, doctype: str = "") -> str:
    return f'{HEAD}{doctype}<tmx version="1.4"><header/><body>\n{"".join(units)}</body></tmx>\n'


@pytest.fixture
def tmx(tmp_path):
    def write(text: str | bytes, name: str = "memory.tmx"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_units_in_order_with_languages_by_case_and_region(tmx):
    path = tmx(document(unit(en="One", de="Eins"), unit(DE_de="Zwei &amp; &#x33;", EN_us="Two &amp; 3"), unit(fr="Un")))
    assert list(read_tmx(path, "en", "de")) == [("One", "Eins"), ("Two & 3", "Zwei & 3"), (None, None)]


def test_a_unit_without_one_language_has_no_side_there(tmx):
    path = tmx(document(unit(en="One", de="Eins"), unit(en="Two", fr="Deux"), unit(de="Drei")))
    assert list(read_tmx(path, "en", "de")) == [("One", "Eins"), ("Two", None), (None, "Drei")]


def test_inline_codes_are_no_text_but_highlighted_text_is(tmx):
    seg = 'Press <bpt i="1">&lt;b&gt;</bpt><hi>OK</hi><ept i="1">&lt;/b&gt;</ept> <ph><sub>code</sub></ph>now'
    assert list(read_tmx(tmx(document(unit(en=seg, de="Jetzt"))), "en", "de")) == [("Press OK now", "Jetzt")]


def test_line_breaks_and_indentation_in_a_segment_are_one_space(tmx):
    path = tmx(document(unit(en="\n   One\n   two \u2028 three\n  ", de="x")))
    assert list(read_tmx(path, "en", "de")) == [("One two \u2028 three", "x")]


def test_old_lang_attribute_other_encodings_and_gzip(tmx):
    text = document('<tu><tuv lang="EN"><seg>caf\u00e9</seg></tuv><tuv lang="DE"><seg>Kaffee</seg></tuv></tu>')
    for content in (
        gzip.compress(text.encode()),
        text.replace("UTF-8", "UTF-16").encode("utf-16"),
        text.replace("UTF-8", "ISO-8859-1").encode("latin-1"),
        b"\xef\xbb\xbf" + text.encode(),
    ):
        assert list(read_tmx(tmx(content), "en", "de")) == [("caf\u00e9", "Kaffee")]


def test_a_doctype_without_declarations_is_accepted_and_its_file_never_read(tmx):
    requests = []

    class Recorder(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        doctype = f'<!DOCTYPE tmx SYSTEM "http://127.0.0.1:{server.server_port}/tmx14.dtd">\n'
        assert list(read_tmx(tmx(document(unit(en="a", de="b"), doctype=doctype)), "en", "de")) == [("a", "b")]
        with pytest.raises(CorpusError, match="memory.tmx:4: uses the entity 'nbsp'"):
            list(read_tmx(tmx(document(unit(en="a&nbsp;b", de="b"), doctype=doctype)), "en", "de"))
    finally:
        server.shutdown()
        server.server_close()
    assert requests == []


BILLION_LAUGHS = (
    "<!DOCTYPE tmx [\n"
    + '<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">\n' for n in range(1, 11))
)


@pytest.mark.parametrize(
    ("doctype", "text"),
    [
        (BILLION_LAUGHS + "]>\n", "&a10;"),
        ('<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]>\n', "&x;"),
        ('<!DOCTYPE tmx [<!ENTITY % x SYSTEM "http://127.0.0.1:9/x.dtd"> %x;]>\n', "a"),
        ('<!DOCTYPE tmx SYSTEM "tmx14.dtd" [<!ATTLIST seg a CDATA "x">]>\n', "a"),
    ],
)
def test_declarations_are_refused_before_anything_expands(tmx, doctype, text):
    path = tmx(document(unit(en=text, de="b"), doctype=doctype))
    with pytest.raises(CorpusError, match=r"memory.tmx:\d+: declares entities in its DOCTYPE"):
        list(read_tmx(path, "en", "de"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "memory.tmx:1: not valid TMX .no element found"),
        (document(unit(en="a", de="b"))[:-20], r"memory.tmx:\d+: not valid TMX .no element found"),
        (document(unit(en="a <b", de="b")), "memory.tmx:3: not valid TMX"),
        (document(unit(en="a &undefined; b", de="b")), "memory.tmx:3: not valid TMX .undefined entity"),
        (document(unit(en="a\0b", de="b")), "memory.tmx:3: not valid TMX"),
        ("<html><body/></html>", "memory.tmx:1: not a TMX file: the first element is <html>"),
        (document("<tu><tuv><seg>a</seg></tuv></tu>"), "memory.tmx:3: <tuv> without xml:lang"),
        (document(), "memory.tmx: no unit in both 'en' and 'de'; it has no translation units"),
        (document(unit(en="a", fr="b")), "memory.tmx: no unit in both 'en' and 'de'; found en, fr"),
        (gzip.compress(document(unit(en="a", de="b")).encode(), mtime=0)[:-9], "memory.tmx:.*cut short"),
        (document(unit(en="a", de="b")).encode() + b"\xff", "memory.tmx:5: not valid TMX"),
    ],
)
def test_faults_name_file_and_line(tmx, text, message):
    with pytest.raises(CorpusError, match=message):
        list(read_tmx(tmx(text), "en", "de"))


# What XML 1.0 can hold (section 2.2), line breaks apart.
texts = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs"], exclude_characters="\ufffe\uffff"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1))
def test_every_text_comes_back_without_the_blanks_around_it(tmp_path_factory, pairs):
    path = tmp_path_factory.getbasetemp() / "any.tmx"
    units = (unit(en=escape(source), de=escape(target)) for source, target in pairs)
    path.write_bytes(document(*units).encode())
    assert list(read_tmx(path, "en", "de")) == [(source.strip(), target.strip()) for source, target in pairs]
