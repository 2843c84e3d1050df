"""How fast this machine multiplies matrices: the ceiling of training, measured between the sides of bench_train.py."""

import time
from collections.abc import Callable
from typing import Any

import torch
from worker import Pipe

REPEATS = 3
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def products(rows: int, columns: int, inner: int, kind: torch.dtype) -> list[tuple[str, Callable[[], torch.Tensor]]]:
    """The three products of a linear layer from `inner` to `columns`: forward, its input's and its weight's gradient.

    In the layouts that autograd multiplies: weights are (columns, inner).
    """
    x, weight = torch.randn(rows, inner).to(kind), torch.randn(columns, inner).to(kind)
    gradient = torch.randn(rows, columns).to(kind)
    return [
        ("forward", lambda: x @ weight.T),
        ("input_gradient", lambda: gradient @ weight),
        ("weight_gradient", lambda: gradient.T @ x),
    ]


def rates(rows: int, columns: int, inner: int, kind: torch.dtype) -> dict[str, float]:
    """GFLOP/s of each product, the best of a few, and of the three together."""
    operations, fastest, result = 2e-9 * rows * columns * inner, [], {}
    for name, multiply in products(rows, columns, inner, kind):
        seconds = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            multiply()
            seconds.append(time.perf_counter() - began)
        fastest.append(min(seconds))
        result[name] = operations / fastest[-1]
    return result | {"all": 3 * operations / sum(fastest)}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """By precision and by layer, as `rates` gives them; `layers` are (rows, columns, inner)."""
    return {
        precision: {name: rates(*sizes, kind) for name, sizes in request["layers"].items()}
        for precision, kind in TYPES.items()
    }


def main() -> None:
    pipe = Pipe()
    for request in pipe.requests():
        try:
            torch.set_num_threads(request["threads"])
            pipe.answer(measure(request))
        except Exception as error:
            pipe.fail(error)


if __name__ == "__main__":
    main()
