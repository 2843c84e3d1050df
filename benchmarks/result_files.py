"""The files of benchmarks/results that hold what a trained model scores: NAME.json and its hypotheses.

NAME.json is of one run: `recipe` (resolved), `manifest`, `command`, `remark`, how long it trained, and `tests`, the
results of `evaluate` with what was translated (`hypotheses_file`) and compared with it (`references`: files of the
shared data, or the named corpus whose test split it is).
"""

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))


def runs(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Every recorded run, by name; results of other benchmarks lie beside them and have no recipe."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if isinstance(result, dict) and "tests" in result and "recipe" in result]


def seeds(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Every summary of one recipe's runs with several seeds (NAME.seeds.json), by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.seeds.json"))]


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result, whole or not at all, as every result file is laid out."""
    temporary = path.with_suffix(".writing")
    temporary.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def in_shared_data(path: str) -> str:
    """A path inside the shared data, wherever that lies on the machine that wrote it, from its folder on."""
    inside = re.search(r"(?:^|/)shared/data/(.+)$", path)
    if inside:
        return inside[1]
    try:
        return Path(path).resolve().relative_to(DATA.resolve()).as_posix()
    except ValueError:
        raise SystemExit(f"{path} is not in the shared data ({DATA}); a stranger could not score against it.") from None
