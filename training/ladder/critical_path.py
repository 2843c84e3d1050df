"""How many matrix products must wait for one another: the longest chain in a traced run, counted and not derived."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

# Products one after the other within one kernel; every other operation counts as nothing. A name stands for its
# variants in place and into a given result too. Attention multiplies twice, Q K^T and the weights with V; so does its
# backward pass, one way through it. The last two are our own decoding's, which packs its weights.
PRODUCTS = {
    "aten::mm": 1,
    "aten::addmm": 1,
    "aten::bmm": 1,
    "aten::baddbmm": 1,
    "aten::mv": 1,
    "aten::addmv": 1,
    "aten::dot": 1,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 2,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 2,
    "mkldnn::_linear_pointwise": 1,
    "mkldnn::_reorder_linear_weight": 0,
}
# Parts of the names of kernels that may hide products; one that is not in PRODUCTS would be counted as nothing.
_HIDING = ("rnn", "lstm", "gru", "mm", "attention", "linear", "conv")


class CriticalPath(TorchDispatchMode):
    """Follows every tensor made while it is active; `length` is the longest chain of products that led to one.

    An operation's result comes after all tensors that it reads. A tensor is followed by its memory, so that a view and
    what was written into it are one; a chain through Python numbers would not be seen. torch's recurrent modules are
    to run step by step (`step_by_step`): a kernel that hides its steps raises RuntimeError.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self._ends: dict[int, int] = {}  # of a tensor's memory, how many products came before it
        self._held: list[StorageWeakRef] = []  # no address is given out twice while these are kept

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removesuffix("_")
        if name not in PRODUCTS and any(part in name for part in _HIDING):
            raise RuntimeError(f"{name} hides its matrix products from the count")
        read = {_memory(value) for value in tree_iter((args, kwargs)) if _is_followed(value)}
        end = max((self._ends.get(key, 0) for key in read), default=0) + PRODUCTS.get(name, 0)
        self.length = max(self.length, end)
        result = func(*args, **kwargs)
        for value in tree_iter(result):
            if _is_followed(value):
                key = _memory(value)
                if key not in self._ends:
                    self._held.append(StorageWeakRef(value.untyped_storage()))
                self._ends[key] = max(end, self._ends.get(key, 0))
        return result


def longest_chain(run: Callable[[], object]) -> int:
    """Matrix products on the longest chain of dependent ones while `run` runs, on the CPU.

    A recurrent layer is one product for the inputs of all its steps, and one product a step.
    """
    with step_by_step(), CriticalPath() as path:
        run()
    return path.length


@contextmanager
def step_by_step() -> Iterator[None]:
    """torch's recurrent modules run as the operations of each step, on the CPU, and not as one oneDNN kernel."""
    before = torch.backends.mkldnn.set_flags(_enabled=False)[0]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)


def _is_followed(value: Any) -> bool:
    # Weights that oneDNN has packed have no memory to go by; nothing is written into them.
    return isinstance(value, torch.Tensor) and not value.is_mkldnn


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
