"""Training speed beside every peer: make bench-train, about twenty minutes on two cores and 20 GB of memory.

    python benchmarks/bench_train.py                # writes benchmarks/results/bench_train.json and .md
    python benchmarks/bench_train.py --quick        # two minutes: whether every side runs; nothing is written

Each side is a process that stays alive, in the environment of its peer (peer_environments.py makes those in .bench).
All get the same batches of real text, the same dropout, label smoothing and Adam, and where a copy is cheap the same
weights, whose losses must agree before anything is timed. Then they take turns, A B C A B C, an update or a few each,
and between them the machine's matrix products are measured, which are the limit. A side that does not run here is
reported with its reason.
"""

import argparse
import dataclasses
import gc
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from bench_train_batches import SEED, TEXTS, Batches, make_batches
from bench_train_figures import Dimensions, Work, limits, ratio, speeds, work_of
from bench_train_report import report
from bench_train_weights import write_weights
from bench_train_workers import Worker
from peer_environments import PEERS, PeerUnavailable, python_of
from peers.worker import PRECISIONS
from transformers.utils import logging as transformers_logging

from vanilla_transformer.training.durable import write_json, write_text
from vanilla_transformer.training.manifest import code_version, hardware

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "bench_train.json"
LABEL_SMOOTHING = 0.1
# Relative difference of losses. Those of the same weights differ by rounding and by JoeyNMT's smoothing, about 1e-6;
# those of other random weights by 3e-3.
AGREES = 2e-5


@dataclass(frozen=True)
class Run:
    """One model on so many threads, and how long it is measured."""

    model: Dimensions
    threads: int
    text: str  # of TEXTS
    budget: int  # padded tokens a side of an update
    warm_up: int  # updates
    rounds: int
    updates: int  # of every side in every round


RUNS = {
    "base": Run(Dimensions(6, 512, 2048, 8, 37_000, 0.1), 1, "news", 1024, 2, 5, 2),
    "multi30k-tiny": Run(Dimensions(4, 128, 256, 4, 9_712, 0.3), 2, "multi30k", 4096, 3, 7, 3),
}
QUICK = {"warm_up": 1, "rounds": 2, "updates": 1}
QUICK_BUDGETS = {"base": 256, "multi30k-tiny": 1024}


@dataclass(frozen=True)
class Script:
    """What a worker runs; `same_weights` where it begins with ours."""

    name: str
    script: str
    variants: tuple[str, ...]
    same_weights: bool


SCRIPTS = (
    *(Script(f"ours {precision}", "side_ours.py", (precision,), True) for precision in PRECISIONS),
    Script("marian", "side_marian.py", tuple(f"{a} {p}" for a in ("sdpa", "eager") for p in PRECISIONS), True),
    Script("torch_transformer", "side_torch_transformer.py", PRECISIONS, True),
    *(Script(peer, f"side_{peer}.py", PRECISIONS, peer == "joeynmt") for peer in PEERS),
)


class Measurement:
    """One run over all sides that work."""

    def __init__(self, run: Run, batches: Batches, environments: Path, folder: Path):
        self._run, self._batches, self._environments, self._folder = run, batches, environments, folder
        self.facts: dict[str, dict[str, Any]] = {}  # by worker
        self.absent: dict[str, str] = {}  # by worker or side: why
        self._sides: list[tuple[str, str, Worker]] = []  # name, variant, worker

    def measure(self) -> dict[str, Any]:
        """Start all sides, warm them up, time them in turns."""
        with ExitStack() as at_end:
            parameters = write_weights(self._run.model, LABEL_SMOOTHING, self._batches.tokenizer, SEED, self._folder)
            gc.collect()  # the models that were written refer to themselves, and memory is short with all sides in it
            for script in SCRIPTS:
                self._start(script, at_end)
            self._require_equal_sizes(parameters)
            limit = Worker("limits", sys.executable, "limits.py", self._run.threads, self._folder)
            at_end.callback(limit.close)
            return self._rounds(limit)

    def _start(self, script: Script, at_end: ExitStack) -> None:
        """Start a side and compare its loss; whatever goes wrong is a reason to leave it out."""
        run, began = self._run, time.perf_counter()
        try:
            python = sys.executable
            if script.name in PEERS:
                python = str(python_of(script.name, self._environments))
            worker = Worker(script.name, python, script.script, run.threads, self._folder)
            at_end.callback(worker.close)
            facts = worker.ask(self._setup(script))
            facts["losses"] = {
                variant: worker.ask({"do": "loss", "variant": variant, "pairs": self._batches.updates[0]})["loss"]
                for variant in script.variants
            }
        except PeerUnavailable as error:
            self.absent[script.name] = str(error)
            print(f"  {script.name}: {error}", file=sys.stderr)
            return
        if script.same_weights and (reason := self._loss_problem(facts["losses"])):
            sys.exit(f"{script.name}: {reason}; the sides do not compute the same.")
        facts["seconds_to_start"] = round(time.perf_counter() - began, 1)
        self.facts[script.name] = facts
        for variant in script.variants:
            name = script.name if script.name.endswith(variant) else f"{script.name} {variant}"
            self._sides.append((name, variant, worker))
        print(f"  {script.name}: {facts['losses']}, {facts['seconds_to_start']} s", file=sys.stderr)

    def _setup(self, script: Script) -> dict[str, Any]:
        run = self._run
        setup = {
            **dataclasses.asdict(run.model),
            "label_smoothing": LABEL_SMOOTHING,
            "threads": run.threads,
            "weights": str(self._folder),
        }
        request = {"do": "setup", "setup": setup}
        if script.script == "side_ours.py":
            pairs = self._folder / "pairs.json"
            pairs.write_text(json.dumps(self._batches.pairs), encoding="utf-8")
            request["plan"] = {
                "seed": SEED,
                "max_source_tokens": run.budget,
                "max_target_tokens": run.budget,
                "precision": script.variants[0],
                "pairs": str(pairs),
                "run": str(self._folder / script.name.replace(" ", "-")),
            }
        return request

    def _loss_problem(self, losses: dict[str, float]) -> str | None:
        """Whether the float32 losses are those of our model, which is the first to start."""
        ours = self.facts.get("ours float32", {}).get("losses", losses)["float32"]
        for variant, loss in losses.items():
            if variant.endswith("float32") and abs(loss / ours - 1) > AGREES:
                return f"its loss is {loss:.6f} where ours is {ours:.6f}"
        return None

    def _require_equal_sizes(self, parameters: int) -> None:
        for name, facts in self.facts.items():
            if abs(facts["parameters"] / parameters - 1) > 0.01:
                sys.exit(f"{name} has {facts['parameters']:,} parameters where ours has {parameters:,}.")

    def _rounds(self, limit: Worker) -> dict[str, Any]:
        run, updates = self._run, iter(self._batches.updates)
        self._turn([next(updates) for _ in range(run.warm_up)])
        seconds: dict[str, list[float]] = {name: [] for name, *_ in self._sides}
        works: list[Work] = []
        measured: list[dict[str, Any]] = []
        model = run.model
        layers = {
            "vocabulary": (run.budget, model.vocabulary, model.d_model),
            "attention": (run.budget, model.d_model, model.d_model),
            "feed_forward": (run.budget, model.d_ff, model.d_model),
        }
        for number in range(run.rounds):
            chosen = [next(updates) for _ in range(run.updates)]
            measured.append(limit.ask({"layers": layers, "threads": run.threads}))
            works.append(sum((work_of(model, pairs) for pairs in chosen), Work(0, 0, 0, 0)))
            for name, taken in self._turn(chosen):
                seconds[name].append(taken)
            print(f"  round {number + 1} of {run.rounds}", file=sys.stderr)
        return self._result(limits(measured), works, {n: s for n, s in seconds.items() if len(s) == run.rounds})

    def _turn(self, updates: list[list[Any]]) -> Iterator[tuple[str, float]]:
        """Every side once, on the same updates; one that fails is left out from then on."""
        tokens, taken = sum(len(s) + len(t) for pairs in updates for s, t in pairs), []
        for side in list(self._sides):
            name, variant, worker = side
            try:
                answer = worker.ask({"do": "updates", "variant": variant, "batches": updates})
            except PeerUnavailable as error:
                self.absent[name] = str(error)
                self._sides.remove(side)
                print(f"  {name}: {error}", file=sys.stderr)
                continue
            if answer.get("tokens", tokens) != tokens:
                sys.exit(f"{name} trained on {answer['tokens']} tokens where the others had {tokens}.")
            taken.append((name, sum(answer["seconds"])))
        return iter(taken)

    def _result(self, rates: dict[str, Any], works: list[Work], seconds: dict[str, list[float]]) -> dict[str, Any]:
        run = self._run
        sides = {}
        for name, taken in seconds.items():
            precision = name.rsplit(" ", 1)[-1]
            sides[name] = speeds(taken, works, rates[precision]["vocabulary"]["all"] * 1e9)
        ours = [name for name in seconds if name.startswith("ours")]
        return {
            "model": dataclasses.asdict(run.model),
            "threads": run.threads,
            "text": TEXTS[run.text].said,
            "budget": run.budget,
            "rounds": run.rounds,
            "updates_a_round": run.updates,
            "tokens_a_round": [work.tokens for work in works],
            "padding": 1 - sum(work.tokens for work in works) / sum(work.padded_tokens for work in works),
            "gflops": rates,
            "workers": self.facts,
            "absent": self.absent,
            "sides": sides,
            "ratios": {
                name: {peer: ratio(seconds[name], seconds[peer]) for peer in seconds if peer not in ours}
                for name in ours
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small batches, two rounds")
    parser.add_argument("--only", choices=RUNS, help="one of the models")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))
    )
    parser.add_argument("--environments", type=Path, default=ROOT / ".bench", help="where peers are installed")
    parser.add_argument("--output", type=Path, help="write the result here; default for the whole: results/")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    began, seconds, results = time.perf_counter(), {}, {}
    for name, run in RUNS.items():
        if arguments.only not in (None, name):
            continue
        if arguments.quick:
            run = dataclasses.replace(run, budget=QUICK_BUDGETS[name], **QUICK)
        started = time.perf_counter()
        print(f"{name}: {TEXTS[run.text].said}", file=sys.stderr)
        batches = make_batches(TEXTS[run.text], arguments.data, run.model.vocabulary, run.budget)
        with tempfile.TemporaryDirectory(prefix="bench-train-") as folder:
            results[name] = Measurement(run, batches, arguments.environments, Path(folder)).measure()
        seconds[name] = round(time.perf_counter() - started, 1)
    result = {
        "name": "bench_train",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/bench_train.py", *sys.argv[1:]]),
        "quick": arguments.quick,
        "code": code_version(),
        "hardware": hardware(Accelerator(cpu=True)),
        "allocator": Path(os.environ.get("LD_PRELOAD", "")).name or "the C library's",
        "seconds": seconds | {"all": round(time.perf_counter() - began, 1)},
        "results": results,
    }
    if output := arguments.output or (None if arguments.quick or arguments.only else RESULT):
        write_json(output, result)
        write_text(output.with_suffix(".md"), report(result))
    print(report(result))


if __name__ == "__main__":
    main()
