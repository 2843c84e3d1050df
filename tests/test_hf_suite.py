"""benchmarks/hf_suite.py: what it unpacks and counts, and that its recorded result leaves nothing unexplained."""

import importlib.util
import io
import json
import re
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "hf_suite.json"


@pytest.fixture(scope="module")
def suite():
    spec = importlib.util.spec_from_file_location("hf_suite", ROOT / "benchmarks" / "hf_suite.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_plain_files_of_the_tests_are_unpacked_and_none_elsewhere(suite, tmp_path: Path):
    archive, folder = tmp_path / "transformers-9.tar.gz", tmp_path / "outer" / "inner"
    with tarfile.open(archive, "w:gz") as tar:
        for name in (
            "transformers-9/tests/test_a.py",
            "transformers-9/tests/generation/test_utils.py",
            "transformers-9/setup.py",
            "transformers-9/tests/../../../escaped.py",
            "transformers-9/tests/../../escaped.py",
            "/tests/escaped.py",
        ):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
        link = tarfile.TarInfo("transformers-9/tests/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    suite.unpack(archive, folder)
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {"tests/test_a.py"} | set(suite.STAND_INS)
    # What a release ships is not replaced by a stand-in.
    shipped = (folder / "tests" / "generation" / "test_utils.py").read_text()
    assert shipped == "transformers-9/tests/generation/test_utils.py"
    assert {path.name for path in tmp_path.iterdir()} == {archive.name, "outer"}
    assert [path.name for path in (tmp_path / "outer").iterdir()] == ["inner"]


REPORT = """<testsuites><testsuite>
  <testcase classname="hf_suite_cases.PaperModelTest" name="test_good"/>
  <testcase classname="cases.PaperModelTest" name="test_bad"><failure message="1 !=&#10; 2">long</failure></testcase>
  <testcase classname="cases.PaperModelTest" name="test_known"><error message="odd">long</error></testcase>
  <testcase classname="hf_suite_cases.TokenizerTest" name="test_b"><skipped message="slow"/></testcase>
  <testcase classname="hf_suite_cases.TokenizerTest" name="test_a"><skipped message="slow"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_with_its_reasons(suite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suite, "KNOWN_FAILURES", {"PaperModelTest::test_known": "a reason"})
    outcome = suite.outcomes(ElementTree.fromstring(REPORT).iter("testcase"))
    assert outcome == {
        "passed": 1,
        "failed": [
            {"test": "PaperModelTest::test_bad", "reason": None, "message": "1 != 2"},
            {"test": "PaperModelTest::test_known", "reason": "a reason", "message": "odd"},
        ],
        "skipped": [{"reason": "slow", "tests": ["TokenizerTest::test_a", "TokenizerTest::test_b"]}],
    }
    table = suite.table([{"transformers": "9", "seconds": 3, **outcome}])
    assert "| 9 | 1 | 2 | 2 | 3 |" in table
    assert "failed: PaperModelTest::test_bad: 1 != 2" in table
    assert "failed: PaperModelTest::test_known: a reason" in table
    assert "skipped 2: slow" in table


def test_the_newest_supported_release_is_chosen(suite, monkeypatch: pytest.MonkeyPatch):
    class Done:
        returncode, stderr = 0, ""
        stdout = "transformers (6.1.0)\nAvailable versions: 6.1.0, 6.0.0rc1, 5.30.0rc1, 5.26.1, 5.26.0, 5.24.0, 4.57\n"

    monkeypatch.setattr(suite.subprocess, "run", lambda *_, **__: Done)
    assert suite.newest_release() == "5.26.1"
    Done.stdout = "transformers (4.57.0)\nAvailable versions: 4.57.0\n"
    assert suite.newest_release() is None
    Done.returncode = 1
    assert suite.newest_release() is None


def test_the_recorded_result_is_of_the_pinned_version_and_explains_every_failure(suite):
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    [pinned] = re.findall(r"^transformers==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert pinned in [run["transformers"] for run in result["runs"]]
    for run in result["runs"]:
        assert run["passed"] > 200
        assert all(fault["reason"] for fault in run["failed"])
        assert all(skip["reason"] != "no reason given" for skip in run["skipped"])
        assert {fault["test"] for fault in run["failed"]} == set(suite.KNOWN_FAILURES)
