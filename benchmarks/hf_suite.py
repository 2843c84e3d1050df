"""Run transformers' own tests of models, configurations, pipelines and tokenizers against ours: make hf-suite.

    python benchmarks/hf_suite.py

Once for the installed version of transformers and, where the package index has a newer release of the same major
version, once more for that in a virtual environment of its own. The tests are those of transformers' source
distribution, fetched with pip and never installed. benchmarks/results/hf_suite.json holds what passed, failed and was
skipped, with every reason.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.version import Version

from vanilla_transformer.training.home_assistant import cache_folder

HERE = Path(__file__).resolve().parent
CASES = HERE / "hf_suite_cases.py"
RESULT = HERE / "results" / "hf_suite.json"
SUPPORTED = (Version("5.24"), Version("6"))  # as setup.cfg says

TINY_MODELS = "tiny"
# What transformers' shipped tests import or read and its source distribution leaves out.
STAND_INS = {
    "src/transformers/__init__.py": "",
    "tests/__init__.py": "",
    "tests/utils/__init__.py": "",
    # Fields of every PreTrainedConfig, away from their defaults.
    "tests/utils/test_configuration_utils.py": (
        "config_common_kwargs = {'return_dict': False, 'output_hidden_states': True, 'output_attentions': True,\n"
        "    'dtype': 'float16', 'chunk_size_feed_forward': 5, 'architectures': ['BertModel'],\n"
        "    'id2label': {0: 'label'}, 'label2id': {'label': 0}, 'problem_type': 'regression'}\n"
    ),
    "tests/exporters/__init__.py": "",
    "tests/exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "tests/generation/__init__.py": "",
    "tests/generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "tests/fixtures/sample_text.txt": (HERE.parent / "README.md").read_text(encoding="utf-8"),
    f"{TINY_MODELS}/reports/tiny_model_summary.json": json.dumps(
        {
            "VanillaTransformerForConditionalGeneration": {
                "tokenizer_classes": ["PreTrainedTokenizerFast"],
                "processor_classes": [],
            }
        }
    ),
    "pytest.ini": "[pytest]\n",
}

# Mixins of the same folder that are not run.
NOT_RUN = {
    "generation/test_utils.py": "not in the source distribution; tests/modeling/test_generation_vanilla_transformer.py",
    "exporters/test_export.py": "not in the source distribution",
    "test_fsdp_mixin.py": "imports tests/distributed_testing_utils.py, which is not in the source distribution",
    "test_tensor_parallel_mixin.py": "imports tests/distributed_testing_utils.py, as above",
    "test_expert_parallel_mixin.py": "for mixtures of experts",
    "test_training_mixin.py": "for decoder-only models: its generated text must begin with the input",
    "test_decision_head_common.py": "for models with a decision head",
    "test_sentencepiece_backend_mixin.py": "for slow tokenizers; ours is fast",
    "test_tokenization_mistral_common.py": "for Mistral's tokenizer",
    "test_processing_common.py": "for processors of several modalities",
    "test_executorch.py": "no mixin: tests a Llama model from the Hub",
    "test_monkey_patching.py": "no mixin: tests the library's patching",
    "test_*image*, test_*video*, test_*feature_extraction*, test_backbone*": "for images, video and sound",
}

# Tests that fail for a reason of theirs or a choice of ours.
_DECODED = "expects the normaliser's output back; ours puts a space before the text, which decoding takes away again"
KNOWN_FAILURES = {
    "OtherSwitchesModelTest::test_inputs_embeds_matches_input_ids": (
        "embeds the target with the source's matrix, and here the two are not shared"
    ),
    "TokenizerTest::test_tokenize_special_tokens": (
        "by choice a special token's name inside a text is text: </s> in a sentence must not end it"
    ),
    "TokenizersBackendTest::test_training_new_tokenizer": _DECODED,
    "TokenizersBackendTest::test_training_new_tokenizer_with_special_tokens_change": _DECODED,
}


def newest_release() -> str | None:
    """The newest supported release of transformers that pip's index has; None where it cannot be asked."""
    command = [sys.executable, "-m", "pip", "index", "versions", "transformers"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, flags=re.MULTILINE)
    if done.returncode or listed is None:
        print(f"The package index gave no list of releases: {done.stderr.strip()}", file=sys.stderr)
        return None
    versions = [Version(text.strip()) for text in listed[1].split(",")]
    supported = [each for each in versions if SUPPORTED[0] <= each < SUPPORTED[1] and not each.is_prerelease]
    return str(max(supported)) if supported else None


def fetch(version: str, cache: Path) -> Path:
    """transformers' source distribution, from the index that pip is configured for."""
    archive = cache / f"transformers-{version}.tar.gz"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
            command += ["--no-binary", "transformers", "--dest", folder, f"transformers=={version}"]
            subprocess.run(command, check=True, timeout=1800)
            os.replace(Path(folder) / archive.name, archive)
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """The plain files below tests/ of an archive into `folder`, then the stand-ins; nothing lands outside `folder`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            release, *parts = PurePosixPath(member.name).parts
            if member.isfile() and release.startswith("transformers-") and parts[0] == "tests" and ".." not in parts:
                write(folder.joinpath(*parts), tar.extractfile(member).read())
    for name, text in STAND_INS.items():
        if not (folder / name).exists():  # what a release ships is never replaced
            write(folder / name, text.encode())


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def interpreter(version: str, cache: Path) -> Path:
    """A Python with this version of transformers: this one, or that of an environment beside it which has it on top."""
    if version == importlib.metadata.version("transformers"):
        return Path(sys.executable)
    folder = cache / f"venv-{version}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = Path(subprocess.check_output([python, "-c", ask], text=True).strip())
        # Packages of this environment are seen behind its own; an editable install among them too.
        below = [path for path in sys.path if path.endswith("site-packages")]
        lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in below)
        (site / "below.pth").write_text(lines, encoding="utf-8")
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*install, f"transformers=={version}"], check=True, timeout=1800)
        (folder / "ready").touch()
    return python


def run(version: str, select: str | None = None) -> dict[str, Any]:
    """Run the cases under one version: counts, and name and reason of all that did not pass."""
    cache = cache_folder() / "hf-suite"
    cache.mkdir(parents=True, exist_ok=True)
    archive = fetch(version, cache)
    python = interpreter(version, cache)
    with tempfile.TemporaryDirectory(prefix="hf-suite-") as name:
        folder = Path(name)
        unpack(archive, folder)
        report = folder / "report.xml"
        command = [str(python), "-m", "pytest", str(CASES), "-c", str(folder / "pytest.ini"), "--quiet", "--no-header"]
        command += ["-p", "no:cacheprovider", "--tb=short", f"--junit-xml={report}", "--disable-warnings"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "HF_HOME": str(folder / "hf-home"),
            "HF_HUB_OFFLINE": "1",
            "RUN_SLOW": "1",
            "TRANSFORMERS_TINY_MODEL_PATH": str(folder / TINY_MODELS),
        }
        started = time.monotonic()
        subprocess.run(command + (["-k", select] if select else []), cwd=folder, env=environment, stdout=sys.stderr)
        if not report.exists():
            sys.exit("hf_suite: pytest left no report; what it said stands above")
        outcome = outcomes(ElementTree.parse(report).iter("testcase"))
    return {
        "transformers": version,
        "archive": {"name": archive.name, "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()},
        "seconds": round(time.monotonic() - started),
        **outcome,
    }


def outcomes(cases: Iterable[ElementTree.Element]) -> dict[str, Any]:
    """Cases of a JUnit report: how many passed; name and reason of each that failed; reason and names of skips.

    A case of which a part was skipped counts as skipped.
    """
    passed, failed, skipped = 0, [], {}
    for case in cases:
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        faults = [element for element in case if element.tag in ("failure", "error")]
        skips = [element for element in case if element.tag == "skipped"]
        if faults:
            message = " ".join((faults[0].get("message") or "").split())[:300]
            failed.append({"test": name, "reason": KNOWN_FAILURES.get(name), "message": message})
        elif skips:
            reason = skips[0].get("message") or "no reason given"
            # The pipeline mixin has a test for every task there is, and names itself in each reason.
            reason = re.sub(r"^\w+::\w+ is skipped: `[\w-]+` is not in .*", "the task is not this model's", reason)
            skipped.setdefault(reason, []).append(name)
        else:
            passed += 1
    return {
        "passed": passed,
        "failed": sorted(failed, key=lambda each: each["test"]),
        "skipped": [{"reason": reason, "tests": sorted(names)} for reason, names in sorted(skipped.items())],
    }


def table(runs: list[dict[str, Any]]) -> str:
    """One line a version, then what failed and how often each reason for skipping was given."""
    lines = ["| transformers | passed | failed | skipped | seconds |", "|---|---|---|---|---|"]
    for each in runs:
        skips = sum(len(skip["tests"]) for skip in each["skipped"])
        cells = (each["transformers"], each["passed"], len(each["failed"]), skips, each["seconds"])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for each in runs:
        lines += ["", f"transformers {each['transformers']}"]
        lines += [f"  failed: {fault['test']}: {fault['reason'] or fault['message']}" for fault in each["failed"]]
        counts = Counter({skip["reason"]: len(skip["tests"]) for skip in each["skipped"]})
        lines += [f"  skipped {count}: {reason[:140]}" for reason, count in counts.most_common()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", dest="select", help="run only the tests that pytest's -k selects, and record nothing")
    arguments = parser.parse_args()
    installed, newest = importlib.metadata.version("transformers"), newest_release()
    versions = [installed] + ([newest] if newest and newest != installed else [])
    runs = [run(version, arguments.select) for version in versions]
    print(table(runs))
    if arguments.select is None:
        result = {
            "command": "make hf-suite",
            "date": datetime.now(UTC).date().isoformat(),
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "newest_release": newest,
            "runs": runs,
            "not_run": NOT_RUN,
        }
        RESULT.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return int(any(fault["reason"] is None for each in runs for fault in each["failed"]))


if __name__ == "__main__":
    sys.exit(main())
