"""How far a source token is from an output: operations on the shortest way between them, counted in a traced run.

A forward pass is followed operation by operation, and every number in it knows how many operations lie between it and
the token's embedding: one more than the nearest number that it was computed from, infinitely many where none of those
depends on the token. This is finer than the autograd graph, whose nodes are whole tensors: the product of a whole
sentence with a weight matrix is one node there, although it leads no token to another.
"""

import math
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel

from vanilla_transformer.training.ladder.critical_path import step_by_step

# By the name of an operation, or of the one that it does in place: numbers are copied to new places,
_MOVES = {"clone", "copy", "cat", "stack", "gather", "index_select", "_to_copy", "_pack_padded_sequence"}
# or each is computed from those at its own place,
_ELEMENTWISE = {"add", "sub", "rsub", "mul", "div", "neg", "tanh", "sigmoid", "relu", "gelu", "silu", "where"}
# or from all those along one dimension,
_ALONG_ONE = {"_softmax", "_safe_softmax"}
# or from a row and a column.
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}

# Views, that a tensor becomes itself.
_RESHAPED_IN_PLACE = {"transpose_", "t_", "squeeze_", "unsqueeze_"}

Unit = Literal["operations", "products"]


class PathLengths(TorchDispatchMode):
    """Follows the numbers of a run on the CPU from those that `start` names.

    Unit "operations" counts whatever computes; "products" counts matrix products alone, so that sums, gates and
    activations are of no length. Moving a number is free. An operation on followed numbers whose way of computing is
    not known here raises RuntimeError; torch's recurrent modules are to run `step_by_step`.
    """

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self._cheap = 1.0 if unit == "operations" else 0.0
        # By a tensor's memory, the lengths of all numbers in it: a view and what is written into it are one.
        self._memories: dict[int, torch.Tensor] = {}
        self._held: list[StorageWeakRef] = []  # no address is given out twice while these are kept

    def start(self, x: torch.Tensor, at: torch.Tensor) -> None:
        """The numbers of x where `at` is true are the beginning of every way."""
        self._write(x, torch.where(at, 0.0, math.inf))

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The length of the shortest way to each number of x; infinite where there is none."""
        memory = self._memories.get(_memory(x))
        if memory is None:
            return torch.full(x.shape, math.inf)
        return memory.as_strided(x.shape, x.stride(), x.storage_offset())

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        followed = [leaf for leaf in _floats((args, kwargs)) if _memory(leaf) in self._memories]
        if followed and _name(func) not in _RESHAPED_IN_PLACE:
            known = {_memory(x) for x in followed}
            made = [x for x in _floats(result) if func._schema.is_mutable or _memory(x) not in known]
            if made:  # else the results are views
                for x, lengths in zip(made, self._lengths(func, args, kwargs), strict=True):
                    self._write(x, lengths)
        return result

    def _lengths(self, func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        """The lengths of an operation's results."""
        name = _name(func).removesuffix("_")
        floats = _floats((args, kwargs))
        if name in _MOVES:
            if name == "copy":
                return [self.of(args[1]).expand(args[0].shape)]
            moved = func(*tree_map(self._instead, args), **tree_map(self._instead, kwargs))
            return _floats(moved)
        if name in _ELEMENTWISE:
            return [_nearest(*map(self.of, floats)) + self._cheap]
        if name == "masked_fill":
            return [(self.of(args[0]) + self._cheap).masked_fill(args[1], math.inf)]
        if name in _ALONG_ONE:
            lengths = self.of(args[0])
            return [lengths.amin(args[1], keepdim=True).expand_as(lengths) + self._cheap]
        if name == "native_layer_norm":
            lengths = self.of(args[0])
            mean = lengths.amin(tuple(range(-len(args[1]), 0)), keepdim=True) + self._cheap
            return [_nearest(mean.expand_as(lengths), self.of(args[2]), self.of(args[3])), mean, mean]
        if name in _PRODUCTS:
            *added, left, right = map(self.of, floats)
            product = _nearest(left.amin(-1, keepdim=True), right.amin(-2, keepdim=True))
            return [_nearest(product, *added) + 1.0]
        raise RuntimeError(f"{func} computes from followed numbers in a way that is not known here")

    def _instead(self, value: Any) -> Any:
        """A tensor's lengths in its place; index tensors and all else as they are."""
        return self.of(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def _write(self, x: torch.Tensor, lengths: torch.Tensor) -> None:
        key, storage = _memory(x), x.untyped_storage()
        if key not in self._memories:
            self._memories[key] = torch.full((storage.nbytes() // x.element_size(),), math.inf)
            self._held.append(StorageWeakRef(storage))
        self.of(x).copy_(lengths)


def shortest_paths(model: PreTrainedModel, source_1S: torch.Tensor, position: int, unit: Unit) -> dict[str, int | None]:
    """From the embedding of the source token at `position`, on the shortest way,

    "answer": to the scores of the first target token; "encoded": to what the encoder says of its last source token.
    None where no way leads there.
    """
    mode, encoder = PathLengths(unit), model.get_encoder()
    before = model.config._attn_implementation
    at_S1 = torch.arange(source_1S.shape[1]).eq(position).unsqueeze(-1)
    hook = encoder.embed_tokens.register_forward_hook(
        lambda _module, _inputs, embedded_1SD: mode.start(embedded_1SD, at_S1.expand(embedded_1SD.shape))
    )
    try:
        model.set_attn_implementation("eager")  # the fused one is a single operation
        with torch.no_grad(), step_by_step(), mode:
            start_11 = torch.full((1, 1), model.config.decoder_start_token_id)
            output = model.eval()(input_ids=source_1S, decoder_input_ids=start_11, use_cache=False)
    finally:
        hook.remove()
        model.set_attn_implementation(before)
    ways = {"answer": output.logits[0, 0], "encoded": output.encoder_last_hidden_state[0, -1]}
    nearest = {name: float(mode.of(x).min()) for name, x in ways.items()}
    return {name: None if math.isinf(length) else int(length) for name, length in nearest.items()}


def _name(func: Any) -> str:
    return func.overloadpacket._qualified_op_name.removeprefix("aten::")


def _floats(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _nearest(*lengths: torch.Tensor) -> torch.Tensor:
    """The least of lengths that are broadcast against each other."""
    least, *others = torch.broadcast_tensors(*lengths)
    for other in others:
        least = torch.minimum(least, other)
    return least


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
