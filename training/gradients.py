"""The gradient of an update: one forward and backward pass after the other, and one exchange between the processes.

Every process makes exactly one exchange an update, in its last backward pass, while that pass still computes. The
others wait in it, so a process that runs out of memory joins in with whatever it has; the update is then agreed to be
computed again, by all.
"""

from contextlib import nullcontext

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.batching import Update
from vanilla_transformer.training.memory import Piece, is_out_of_memory, release


class Gradients:
    """Adds up the gradients of a model's updates on this process; `seed` is the run's."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, seed: int, pad_id: int):
        self._accelerator, self._model, self._seed, self._pad_id = accelerator, model, seed, pad_id
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._sharded = accelerator.distributed_type == DistributedType.FSDP
        # Parameters that the running backward pass is done with. DDP has handed them over, and takes each only once.
        self._done: set[nn.Parameter] = set()
        if accelerator.num_processes > 1 and not self._sharded:
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(self._done.add)

    def pieces(self, update: Update) -> list[Piece]:
        """This process's share of an update; alone, a process has no use for empty parts."""
        world, process = self._accelerator.num_processes, self._accelerator.process_index
        return [
            Piece(index * world + process, batch, lines)
            for index, (batch, lines) in enumerate(zip(update.batches, update.batch_lines, strict=True))
            if batch is not None or world > 1
        ]

    def add(self, pieces: list[Piece], step: int, target_tokens: int) -> tuple[torch.Tensor, Piece | None]:
        """Add the gradients of the pieces; returns their share of the loss per target token of the whole update.

        The second answer is the piece that the memory did not hold, else None. Then loss and gradients are worthless,
        in every process, but all have been exchanged.
        """
        device = self._accelerator.device
        # float64 holds a sum of float32 losses exactly, over parts as over processes; Apple's GPUs do not have it.
        total = torch.zeros((), device=device, dtype=torch.float32 if device.type == "mps" else torch.float64)
        part = None
        for piece in pieces:
            if piece.part != part:
                part = piece.part
                seed_generators(device, part_seed(self._seed, step, part))
            loss = self._pass(piece, target_tokens, exchange=piece is pieces[-1])
            if loss is None:
                return total, piece
            total += loss
        return total, None

    def norm(self, limit: float | None) -> torch.Tensor:
        """The norm of the whole gradient, which is then scaled down to `limit`; the same on every process."""
        if limit is None and not self._sharded:
            return torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        # Sharded gradients have no other way to their norm.
        norm = self._accelerator.clip_grad_norm_(self._parameters, float("inf") if limit is None else limit)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def _pass(self, piece: Piece, target_tokens: int, exchange: bool) -> torch.Tensor | None:
        """The loss of one piece, its gradients added; None where the memory did not hold it, all then exchanged."""
        accelerator, forward_done = self._accelerator, False
        loss: torch.Tensor | None = None
        try:
            with nullcontext() if exchange else accelerator.no_sync(self._model):
                loss = self._loss(self._model, piece.batch, target_tokens)
                forward_done = True
                self._done.clear()
                # Processes take the mean of their gradients, and the sum is wanted.
                (loss * accelerator.num_processes).backward()
                return loss.detach()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self._sharded:  # all processes go through a sharded model together, layer by layer
                raise UserError(
                    f"Out of memory on a batch of {len(piece.lines)} pairs, which cannot be split while the model is "
                    "sharded. Continue with --resume and a larger training.gradient_accumulation_steps."
                ) from error
        # Only here are the exception and the activations that it holds gone.
        loss = None
        release(accelerator.device)
        if accelerator.num_processes > 1:
            self._exchange(half_way=exchange and forward_done)
        return None

    def _exchange(self, half_way: bool) -> None:
        """Make the exchange that the other processes wait in, or what is left of one that broke off `half_way`.

        DDP exchanges buffers too, in a forward pass: a model that had any would need broadcast_buffers=False here.
        """
        if not half_way:
            self._loss(self._model, None, 1).backward()
        elif left := [parameter for parameter in self._parameters if parameter not in self._done]:
            # DDP still waits for these, and would begin anew if its own forward were called.
            model = self._accelerator.unwrap_model(self._model, keep_torch_compile=False)
            self._loss(model, None, 1).backward(inputs=left)

    def _loss(self, model: nn.Module, batch: dict[str, torch.Tensor] | None, target_tokens: int) -> torch.Tensor:
        """A batch's share of the loss; of no batch that of one token a side, times zero."""
        device = self._accelerator.device
        if batch is not None:
            inputs = {name: values.to(device, non_blocking=True) for name, values in batch.items()}
            return model(**inputs, num_items_in_batch=target_tokens).loss
        token = torch.tensor([[int(self._pad_id == 0)]], device=device)  # any but the pad
        return model(input_ids=token, attention_mask=torch.ones_like(token), labels=token).loss * 0.0


def part_seed(seed: int, step: int, part: int) -> int:
    """The seed of all that is random in one part of one update, whichever process computes it and in which session."""
    return int(np.random.SeedSequence((seed, step, part)).generate_state(1, np.uint64)[0])


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the CPU's generator and the device's.

    torch.manual_seed, without a GPU in use, notes each call and its stack for the day when there is one: a millisecond
    and a piece of memory for every micro-batch.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
