"""Seq2SeqTrainer on a model of a few thousand weights: pairs of uneven length, and what the paper's loss is of them."""

from typing import Any

import torch
from small_models import BOS, EOS, PAD, small_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

# The model's label smoothing, over what, and Trainer's label_smoothing_factor; the loss that all of them must give.
SMOOTHINGS = {
    "none": (dict(label_smoothing=0.0), 0.0),
    "the model's": (dict(label_smoothing=0.2), 0.0),
    "the model's, over others": (dict(label_smoothing=0.2, label_smoothing_over="others"), 0.0),
    "Trainer's in place of the model's": (dict(label_smoothing=0.3), 0.2),
}


def toy_pairs(count: int = 8, seed: int = 0) -> list[dict[str, list[int]]]:
    """Pairs of 1 to 9 tokens a side and the end token."""
    random = torch.Generator().manual_seed(seed)

    def sentence() -> list[int]:
        length = int(torch.randint(1, 10, (), generator=random))
        return [*torch.randint(3, 23, (length,), generator=random).tolist(), EOS]

    pairs = [{"input_ids": sentence(), "labels": sentence()} for _ in range(count)]
    return [pair | {"attention_mask": [1] * len(pair["input_ids"])} for pair in pairs]


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """One word a token: w3 to w22, numbered as they are called."""
    vocabulary = {"<s>": BOS, "<pad>": PAD, "</s>": EOS, **{f"w{i}": i for i in range(3, 23)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="w3"
    )


class Gradients(TrainerCallback):
    """Keeps every update's gradients."""

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.seen.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def toy_trainer(output_dir: Any, model: Any, pairs: Any, callbacks: Any = (), more: Any = None, **arguments: Any):
    """A Seq2SeqTrainer on the CPU that reports to nobody; `arguments` are the training's, `more` the trainer's own."""
    defaults = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    defaults["max_grad_norm"] = 0.0  # nothing is clipped
    tokenizer = toy_tokenizer()
    return Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(str(output_dir), use_cpu=True, **(defaults | arguments)),
        train_dataset=pairs,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        callbacks=list(callbacks),
        **(more or {}),
    )


def one_update(output_dir: Any, smoothing: str, model: Any = None, **arguments: Any) -> tuple[float, dict]:
    """The loss that Trainer logs for one update over the 8 toy pairs, and its gradients."""
    fields, factor = SMOOTHINGS[smoothing]
    model = model or small_model(output_bias=True, **fields)
    gradients = Gradients()
    trainer = toy_trainer(output_dir, model, toy_pairs(), [gradients], label_smoothing_factor=factor, **arguments)
    trainer.train()
    [update] = gradients.seen
    return trainer.state.log_history[0]["loss"], update


def whole_batch(smoothing: str) -> tuple[float, dict[str, torch.Tensor]]:
    """The same by definition: pair by pair without padding, -sum(q log p) over all target tokens, divided by them."""
    fields, factor = SMOOTHINGS[smoothing]
    model = small_model(output_bias=True, **fields).double()
    epsilon = factor or fields["label_smoothing"]
    total, tokens = torch.zeros(()), 0
    for pair in toy_pairs():
        target = torch.tensor(pair["labels"])
        decoder_input = torch.tensor([[BOS, *pair["labels"][:-1]]])
        log_p = (
            model(input_ids=torch.tensor([pair["input_ids"]]), decoder_input_ids=decoder_input).logits[0].log_softmax(1)
        )
        rows, size = range(len(target)), log_p.shape[1]
        if fields.get("label_smoothing_over") == "others":
            q = torch.full_like(log_p, epsilon / (size - 1))
            q[rows, target] = 1 - epsilon
        else:
            q = torch.full_like(log_p, epsilon / size)
            q[rows, target] += 1 - epsilon
        total = total - (q * log_p).sum()
        tokens += len(target)
    loss = total / tokens
    loss.backward()
    return loss.item(), {name: parameter.grad.float() for name, parameter in model.named_parameters()}


def main(folder: str) -> None:
    """Under torchrun: each case's loss and gradients on two processes, at 4 x 1 and 2 x 2 pairs, as FOLDER/cases.pt."""
    results = {}
    for smoothing in SMOOTHINGS:
        for batch, accumulation in ((4, 1), (2, 2), (1, 4)):
            loss, gradients = one_update(
                folder,
                smoothing,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulation,
            )
            results[smoothing, batch] = loss, gradients, torch.distributed.get_world_size()
    if torch.distributed.get_rank() == 0:
        torch.save(results, f"{folder}/cases.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
