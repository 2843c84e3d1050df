"""The document that argues for the Transformer says what the result files say: each number, each line of code."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import ladder_rows
import pytest

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.ladder import page, report
from vanilla_transformer.training.ladder.exhibits import Table, shown
from vanilla_transformer.training.ladder.systems import TOLERANCE

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = ("en", "zh")

# The numbers of the templates' own sentences. They are no measurements, and only lines of a template may have them.
OF_THE_ARGUMENT = {
    *("1997", "2014", "2017"),  # when LSTM, attention and the Transformer were published
    *("0", "1", "100"),  # a gate's range, a sum, words of an example
    f"{100 * TOLERANCE:g}",  # percent by which the systems' sizes differ at most
}
# A number as a reader sees it; figures inside a name, such as chrF2, multi30k or tok:13a, are none.
NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)*(?:e[-+]?[0-9]+)?(?![A-Za-z0-9_]|[.,][0-9])", re.ASCII
)


def numbers_in(text: str) -> list[str]:
    """The numbers of a document in order; those in code, addresses and links to code are not its own."""
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)  # code by indentation
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"\[\w+\.py:[0-9]+\]", "[]", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"\b(at|提交) [0-9a-f]{7}\b", "", text)  # a commit
    return NUMBER.findall(text)


def numbers_of_results(folder: Path) -> set[str]:
    """What ladder.json has, in its words and as the tables show its values, the chance level, and the machine."""
    found: set[str] = set()
    for part in json.loads((folder / "ladder.json").read_text(encoding="utf-8")).values():
        for table in part["tables"]:
            values = [value for row in table["rows"] for value in row]
            for value in (table["title"], *table["columns"], *values, table["note"]):
                found.update(NUMBER.findall(shown(value)))
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "rows" in content:
            found.update(NUMBER.findall(report.measured_with(content)))
            found.update(shown(row["chance"]) for row in content["rows"].values() if "chance" in row)
    return found


def untraced(text: str, template: str, measured: Iterable[str]) -> list[str]:
    """The numbers that neither a result file has nor, in a line of the template, the argument."""
    own, measured = set(template.splitlines()), set(measured)
    # An indented line is code on its own too.
    return [
        number
        for line in text.splitlines()
        for number in numbers_in(line)
        if number not in (OF_THE_ARGUMENT if line in own else measured)
    ]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        import make_why_transformer

        yield make_why_transformer


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """A finished run's folder; its pictures are empty."""
    folder = tmp_path_factory.mktemp("ladder")
    ladder_rows.write_studies(folder, ladder_rows.studies())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw", lambda plot, kind: b"")
        patch.setattr(page, "draw", lambda plot, kind: b"<svg ></svg>")
        report.write_report(folder)
    return folder


@pytest.fixture(scope="module")
def documents(script, results) -> dict[str, str]:
    return {language: script.Document(language, script.Results(results)).render() for language in LANGUAGES}


def template(script, language: str) -> str:
    return (script.TEMPLATES / f"{script.FILES[language]}.j2").read_text(encoding="utf-8")


def test_both_documents_have_the_same_tables_each_with_its_trace(script, documents):
    shape = [re.sub(r"[^|\n]", "", text).splitlines() for text in documents.values()]
    assert [[line for line in lines if line] for lines in shape][0] == [line for line in shape[1] if line]
    # By hand: chains 1, gradient 1, BLEU by length 1, ablations 1, test scores and cost 2, right answers 1, pronouns 5,
    # times 2, complexity 4, scaling 3.
    for text in documents.values():
        traces = re.findall(rf"`{script.COMMAND}`.*?\[(\w+)\.json\]\(\.\./benchmarks/results/ladder/\1\.json\)", text)
        assert len(traces) == 21 and set(traces) == set(ladder_rows.studies())
        assert len(traces) == len(re.findall(r"^\|( ?-{3}:? ?\|)+$", text, flags=re.MULTILINE)) - 2  # two by hand
        assert "{{" not in text and "None" not in text


def test_a_table_is_that_of_the_study(documents):
    # Of answers(4): 190 of 200 right at k = 4, 13 at the others. Recall comes before the pronouns.
    for text in documents.values():
        [line, *_] = re.findall(r"^\| rnn \| 2 \| 0\.950 .*$", text, flags=re.MULTILINE)
        assert re.findall(r" (0\.\d+) \(", line) == ["0.950", "0.065", "0.065"]


def test_what_the_chinese_document_says_of_tables_is_chinese(documents):
    text = documents["zh"]
    words = re.sub(r"`[^`]*`|\]\([^)]*\)|^    .*$", "", text, flags=re.MULTILINE)
    assert not re.findall(r"[a-z]+(?: [a-z]+){3,}", words)
    assert "| 去掉解码器掩码 |" in text and "**多" not in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_number_is_that_of_a_result_file(script, results, documents, language):
    text, measured = documents[language], numbers_of_results(results)
    assert len(numbers_in(text)) > 400
    assert untraced(text, template(script, language), measured) == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("before, after", [("30.00", "30.02"), ("0.950", "0.953"), (" 0.0625", " 0.0626")])
def test_a_number_that_was_changed_is_found(script, results, documents, language, before, after):
    text = documents[language]
    if before == "30.00":
        before = next(number for number in numbers_in(text) if re.fullmatch(r"\d\d\.\d\d", number))
        after = "30.02"
    assert before in text
    changed = text.replace(before, after, 1)
    assert untraced(changed, template(script, language), numbers_of_results(results)) == [after.strip()]


def test_numbers_are_read_as_a_reader_does():
    text = "chrF2 of multi30k tok:13a: 1,402,113 at −, -0.15 ±0.5, "
    text += "1.2e-05 (12.5–14) torch 2.13.0+cpu; 95%，k = 4。隔 64 个"
    expected = ["1,402,113", "-0.15", "0.5", "1.2e-05", "12.5", "14", "2.13.0", "95", "4", "64"]
    assert numbers_in(text) == expected
    assert numbers_in("`d = 5` [model.py:350](../model.py#L350)\n    h[1] = 7\nat 1234567.") == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_committed_document_is_what_the_script_makes(script, language):
    path = script.DOCS / script.FILES[language]
    if not path.exists():
        pytest.skip(f"{path.name} is not made yet")
    text = script.Document(language, script.Results(script.RESULTS)).render()
    assert path.read_text(encoding="utf-8") == text
    assert untraced(text, template(script, language), numbers_of_results(script.RESULTS)) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_lead_to_the_lines_that_the_template_quotes(script, documents, language):
    quoted = re.findall(r'code\("(.*)"\) }}', template(script, language))
    links = re.findall(r"\[\w+\.py:(\d+)\]\((\S+)#L(\d+)\)", documents[language])
    assert len(quoted) == len(links) == 10
    for text, (named, path, number) in zip(quoted, links, strict=True):
        lines = (script.DOCS / path).read_text(encoding="utf-8").splitlines()
        assert named == number and lines[int(number) - 1].strip() == text


@pytest.mark.parametrize("text, count", [("self.norm = nn.BatchNorm()", 0), ("self.gradient_checkpointing = False", 2)])
def test_a_line_that_is_not_there_once_is_an_error(script, text, count):
    with pytest.raises(UserError, match=f"has {count} lines"):
        script.code(text)


def test_pictures_exist(script, results, documents):
    for text in documents.values():
        linked = re.findall(r"\(\.\./benchmarks/results/ladder/(plots/\S+\.png)\)", text)
        assert len(linked) == 3 and all((results / name).exists() for name in linked)
    with pytest.raises(UserError, match=r"recall-nothing\.png is missing"):
        script.Document("en", script.Results(results)).plot("recall", "nothing")


def test_a_missing_result_names_the_file_and_the_command(script, results, tmp_path, monkeypatch):
    shutil.copytree(results, tmp_path / "run")
    (tmp_path / "run" / "scaling.json").unlink()
    monkeypatch.setattr(script, "RESULTS", tmp_path / "run")
    monkeypatch.setattr(script, "DOCS", tmp_path)
    monkeypatch.setattr("sys.argv", ["make_why_transformer.py"])
    with pytest.raises(SystemExit) as caught:
        script.main()
    assert (
        f"{tmp_path / 'run' / 'scaling.json'} is missing" in caught.value.code and script.COMMAND in caught.value.code
    )
    assert not list(tmp_path.glob("*.md"))  # neither is written where one cannot be


def test_results_are_copied_from_a_run(script, results, documents, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "RESULTS", tmp_path / "committed")
    monkeypatch.setattr(script, "DOCS", tmp_path)
    monkeypatch.setattr("sys.argv", ["make_why_transformer.py", "--results", str(results)])
    script.main()
    for language, name in script.FILES.items():
        assert (tmp_path / name).read_text(encoding="utf-8") == documents[language]
    copied = sorted(path.name for path in (tmp_path / "committed").iterdir())
    assert copied == sorted([*(f"{study}.json" for study in ladder_rows.studies()), "ladder.json", "plots"])


def test_a_title_that_no_table_has_is_an_error(script, results):
    document = script.Document("en", script.Results(results))
    assert document.table("recall", "GRADIENT").count("\n| before | ") == 6
    with pytest.raises(UserError, match="no table of that title is left"):
        document.table("recall", "gradient")


def test_words_without_chinese_are_an_error(script):
    import why_transformer_chinese

    table = Table("Fitted power laws", ["system", "x"], [["rnn", "parameters"], ["rnn", "moons"]])
    with pytest.raises(UserError, match="no Chinese for this text of a table; add it:\n  moons"):
        why_transformer_chinese.chinese_table(table)
