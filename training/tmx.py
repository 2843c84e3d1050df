"""Reads TMX, the exchange format of translation memories, without ever expanding an entity or opening another file."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.language_codes import language_matches
from vanilla_transformer.training.text_files import DAMAGED_GZIP, MAX_LINE_BYTES, checked, open_bytes, unreadable


class _TmxUnits:
    """Collects translation units from expat's events; feed() returns the units completed so far.

    Nothing outside the file is ever opened and no entity is ever declared: a DOCTYPE with an internal subset, where
    expanding entities would be declared, is refused, and a bare `<!DOCTYPE tmx SYSTEM "tmx14.dtd">`, which OmegaT
    writes, is accepted and its file never read. Text inside inline markup other than <hi> is native code (TMX 1.4b,
    section 3.2) and no part of the sentence.
    """

    CODE = frozenset({"bpt", "ept", "it", "ph", "ut", "sub"})

    def __init__(self, path: str | Path, source_lang: str, target_lang: str) -> None:
        self.path, self.wanted = path, (source_lang, target_lang)
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity
        self.parser.ExternalEntityRefHandler = self._entity
        self.parser.SkippedEntityHandler = self._entity
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.done: list[tuple[str | None, str | None]] = []
        self.languages: dict[str, None] = {}  # an ordered set, for the error message
        self.texts: dict[str, str] = {}
        self.language, self.first_element = "", True
        self.seg: list[str] | None = None
        self.size = self.code_depth = 0

    def feed(self, data: bytes, final: bool) -> list[tuple[str | None, str | None]]:
        try:
            self.parser.Parse(data, final)
        except expat.ExpatError as error:
            raise CorpusError(f"{self.path}:{error.lineno}: not valid TMX ({expat.ErrorString(error.code)})") from None
        done, self.done = self.done, []
        return done

    def _fail(self, message: str) -> NoReturn:
        raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: {message}")

    def _doctype(self, _name: str, _system: str | None, _public: str | None, has_internal_subset: int) -> None:
        if has_internal_subset:
            self._fail("declares entities in its DOCTYPE; remove the part in [...], it is refused for safety")

    def _entity(self, name: str | None, *_details: object) -> NoReturn:
        self._fail(f"uses the entity {name!r}, which is not part of XML; entities are refused for safety")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self.first_element and name != "tmx":
            self._fail(f"not a TMX file: the first element is <{name[:40]}>")
        self.first_element = False
        if name == "tu":
            self.texts = {}
        elif name == "tuv":
            self.language = attributes.get("xml:lang", attributes.get("lang", ""))
            if not self.language:
                self._fail("<tuv> without xml:lang")
            if len(self.languages) < 100:
                self.languages[self.language] = None
        elif name == "seg":
            self.seg, self.size, self.code_depth = [], 0, 0
        elif self.seg is not None and name in self.CODE:
            self.code_depth += 1

    def _text(self, text: str) -> None:
        if self.seg is not None and not self.code_depth:
            self.size += len(text)
            if self.size > MAX_LINE_BYTES:
                self._fail(f"a segment of more than {MAX_LINE_BYTES // 2**20} MiB")
            self.seg.append(text)

    def _end(self, name: str) -> None:
        if name == "seg" and self.seg is not None:
            where = f"{self.path}:{self.parser.CurrentLineNumber}"
            # the first of several variants in one language counts
            self.texts.setdefault(self.language, checked("".join(self.seg), where).strip())
            self.seg = None
        elif name == "tu":
            found = [language_matches(wanted, tuple(self.texts)) for wanted in self.wanted]
            self.done.append(
                (self.texts[found[0][0]] if found[0] else None, self.texts[found[1][0]] if found[1] else None)
            )
        elif self.seg is not None and name in self.CODE:
            self.code_depth -= 1


def read_tmx(path: str | Path, source_lang: str, target_lang: str) -> Iterator[tuple[str | None, str | None]]:
    """The translation units of a TMX file; a side is None where a unit lacks the language.

    Languages match as in language_matches. Raises CorpusError for anything but well-formed TMX, for entities, and if no
    unit has both languages.
    """
    units = _TmxUnits(path, source_lang, target_lang)
    count = both = 0
    try:
        with open_bytes(path) as stream:
            final = False
            while not final:
                data = stream.read(2**16)
                final = not data
                for pair in units.feed(data, final):
                    count += 1
                    both += None not in pair
                    yield pair
    except (*DAMAGED_GZIP, OSError) as error:
        raise unreadable(path, error, units.parser.CurrentLineNumber) from error
    if not both:
        found = f"found {', '.join(units.languages)}" if units.languages else "it has no translation units"
        raise CorpusError(f"{path}: no unit in both {source_lang!r} and {target_lang!r}; {found}")
