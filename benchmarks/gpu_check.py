"""What one GPU says of this package, in under eight minutes: is it right there, and how fast.

    python benchmarks/gpu_check.py                                      # needs a GPU; exit code 1 without one
    python benchmarks/gpu_check.py --device cpu --tiny --output x.json  # whether the script itself works

Correctness comes first: bfloat16 against float32, fused and flash attention against the equations, decoding with a
static, compiled cache. Then training in bfloat16 for the paper's base and big, tokens a second and the share of the
GPU's peak (MFU), side by side with transformers' MarianMTModel and torch.nn.Transformer on the same updates; then
decoding. Needs no data: the corpus is of random words in the lengths of real sentences. What does not fit into the time
is left out, and said so. Writes benchmarks/results/gpu_check.json; exit code 1 where a check fails.
"""

import argparse
import gc
import json
import shlex
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))

from bench_train_figures import Dimensions  # noqa: E402
from bench_train_weights import config_of  # noqa: E402
from gpu_check_correctness import Correctness  # noqa: E402
from gpu_check_sides import (  # noqa: E402
    SMOOTHING,
    Size,
    Updates,
    decode,
    figures,
    marian,
    train_marian,
    train_ours,
    train_torch,
)

from vanilla_transformer.modeling.modeling_vanilla_transformer import (  # noqa: E402
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.training.dry_run import PEAKS  # noqa: E402
from vanilla_transformer.training.durable import write_json  # noqa: E402
from vanilla_transformer.training.manifest import LIBRARIES, code_version, hardware  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "gpu_check.json"
MINUTES = 7.5
# The goals are shares of the peak of an H100 or H200.
SIZES = {
    "base": Size(Dimensions(6, 512, 2048, 8, 37_000, 0.1), tokens=25_000, warm_up=8, updates=20, goal=0.4),
    "big": Size(Dimensions(6, 1024, 4096, 16, 37_000, 0.3), tokens=25_000, warm_up=5, updates=10, goal=0.5),
}
TINY = {"tiny": Size(Dimensions(1, 32, 64, 2, 300, 0.1), tokens=600, warm_up=2, updates=3, goal=0.0)}
DECODING = {"rows": 64, "length": 64, "rounds": 3}
TINY_DECODING = {"rows": 2, "length": 8, "rounds": 1}


class Clock:
    """Runs one part after the other as long as there is time; a part that fails says why and the others go on."""

    def __init__(self, minutes: float):
        self._end = time.perf_counter() + 60 * minutes

    def part(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if time.perf_counter() >= self._end:
            return {"left_out": "the time was over"}
        began = time.perf_counter()
        try:
            result = measure()
        except Exception as error:  # of whatever kind: the loan of a GPU is short, and the other parts count
            result = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        result["seconds"] = round(time.perf_counter() - began, 1)
        print(f"{name}: {json.dumps(result)}", file=sys.stderr)
        return result


def peak_of(device: torch.device) -> float | None:
    """The maker's dense bfloat16 peak in FLOP/s, None where it is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for gpu, peak in PEAKS.items() if gpu in name), None)


def training(clock: Clock, size: Size, device: torch.device, peak: float | None) -> dict[str, Any]:
    """Every side on the same updates; ours as `train` runs it, with and without training.compile."""
    updates = Updates.make(size)
    work = updates.measured()

    def measured(train: Callable[..., tuple[list[float], list[float]]], *options: Any) -> dict[str, Any]:
        seconds, losses = train(updates, device, *options)
        return figures(seconds, work, peak) | {"first_loss": losses[0], "last_loss": losses[-1]}

    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "ours": lambda: measured(train_ours, False),
        "marian": lambda: measured(train_marian),
        "torch.nn.Transformer": lambda: measured(train_torch),
    }
    if device.type == "cuda":  # on a CPU, compiling takes longer than all the rest
        sides["ours, compiled"] = lambda: measured(train_ours, True)
    result: dict[str, Any] = {name: clock.part(f"training {name}", side) for name, side in sides.items()}
    shares = [side["mfu"] for name, side in result.items() if name.startswith("ours") and side.get("mfu")]
    return {
        "tokens": work.tokens,
        "updates": size.updates,
        "padding": 1 - work.tokens / work.padded_tokens,
        "sides": result,
        "goal": {"mfu": size.goal, "reached": max(shares) if shares else None},
    }


def decoding(clock: Clock, size: Size, device: torch.device, asked: dict[str, int]) -> dict[str, Any]:
    """Greedy and beam 4 with bfloat16 weights, ours and Marian; greedy with a static cache, compiled on a GPU."""

    def model(name: str) -> torch.nn.Module:
        torch.manual_seed(1)
        built = (
            marian(size.model)
            if name == "marian"
            else VanillaTransformerForConditionalGeneration(config_of(size.model, SMOOTHING))
        )
        return built.to(device, torch.bfloat16).eval()

    result = {}
    for name in ("ours", "marian"):
        for kind, beams, options in (
            ("greedy", 1, {}),
            ("beam 4", 4, {}),
            ("greedy, static cache", 1, {"cache_implementation": "static"}),
        ):
            result[f"{name} {kind}"] = clock.part(
                f"decoding {name} {kind}",
                lambda name=name, beams=beams, options=options: decode(
                    model(name), device=device, beams=beams, **asked, **options
                ),
            )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand weights")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no part begins later")
    parser.add_argument("--output", type=Path, help="write the result here; default on a GPU, at full size: results/")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_check: there is no GPU that torch can use, and nothing was measured or estimated.")
    device = torch.device(arguments.device)
    began, clock = time.perf_counter(), Clock(arguments.minutes)
    sizes = TINY if arguments.tiny else SIZES
    first = next(iter(sizes.values())).model
    checks = Correctness(first, device).checks()
    correctness = {name: clock.part(name, check) for name, check in checks.items()}
    peak = peak_of(device)
    result = {
        "name": "gpu_check",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/gpu_check.py", *sys.argv[1:]]),
        "tiny": arguments.tiny,
        "code": code_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "hardware": hardware(Accelerator(cpu=arguments.device == "cpu")),
        "peak_flops": peak,
        "correctness": correctness,
        "training": {name: training(clock, size, device, peak) for name, size in sizes.items()},
        "decoding": {
            name: decoding(clock, size, device, TINY_DECODING if arguments.tiny else DECODING)
            for name, size in sizes.items()
        },
        "seconds": round(time.perf_counter() - began, 1),
    }
    result["passed"] = all(check.get("passed") for check in correctness.values())
    default = arguments.device == "cuda" and not arguments.tiny
    if output := arguments.output or (RESULT if default else None):
        write_json(output, result)
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    main()
