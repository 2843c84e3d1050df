"""Greedy and beam search over steps of a decoder: transformers' rules, without the work that changes no token.

What transformers' `_beam_search` and `_sample` do for the tokens alone, step by step the same numbers. Finished
sentences leave the batch; the best candidates come from blocks of the vocabulary, not from sorting it. Ships to the Hub
beside the weights; imports torch alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

# Shapes: B sentences, k hypotheses of each, R = B x k rows, M candidates of a sentence, T target positions so far,
# N vocabulary.

# What transformers gives hypotheses that must not be chosen.
NEVER = -1.0e9
BLOCK = 64
# So many rows of a large vocabulary stay in a processor's cache from one pass over them to the next.
ROWS_IN_CACHE = 32


class Steps(Protocol):
    """A decoder that remembers what it has read; decoding_vanilla_transformer.DecoderSteps is one."""

    def prompt(self, ids_BT: torch.Tensor) -> torch.Tensor: ...

    def next(self, tokens_Bk: torch.Tensor, parents_Bk: torch.Tensor) -> torch.Tensor: ...

    def keep(self, rows: torch.Tensor) -> None: ...


@dataclass
class Ends:
    """When hypotheses end, and what may not be written."""

    eos: torch.Tensor  # token ids that end
    pad: int
    max_length: int  # with the prompt
    caps_B: torch.Tensor | None = None  # new tokens, sentence by sentence
    suppressed: torch.Tensor | None = None  # never written
    min_length: int = 0  # no end before so many tokens, with the prompt

    def forbid(self, scores_RN: torch.Tensor, length: int) -> torch.Tensor:
        """In place: -inf for what cannot follow `length` tokens."""
        if self.suppressed is not None:
            scores_RN.index_fill_(1, self.suppressed, -torch.inf)
        if length < self.min_length:
            scores_RN.index_fill_(1, self.eos, -torch.inf)
        return scores_RN

    def reached(self, tokens_BM: torch.Tensor, new: int, length: int) -> torch.Tensor:
        """Which of the hypotheses end with their last token, their `new`th and, with the prompt, `length`th."""
        if length >= self.max_length:
            return torch.ones_like(tokens_BM, dtype=torch.bool)
        ended_BM = torch.isin(tokens_BM, self.eos)
        return ended_BM if self.caps_B is None else ended_BM | (self.caps_B <= new).unsqueeze(1)

    def possible(self, tokens: int) -> int:
        """How many of a vocabulary of `tokens` may always be written, at least."""
        return tokens - len(self.eos) - (0 if self.suppressed is None else len(self.suppressed))

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these sentences, in this order."""
        if self.caps_B is not None:
            self.caps_B = self.caps_B[rows]


def best(scores_RN: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.topk over the last dimension, by blocks: the `count` best lie in the blocks with the `count` best heads."""
    R, N = scores_RN.shape
    blocks = N // BLOCK
    if blocks < 4 * count:
        return scores_RN.topk(count)
    blocked_RNB = scores_RN[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    chosen = blocked_RNB.amax(-1).topk(count)[1].sort()[0]
    found = blocked_RNB.gather(1, chosen.unsqueeze(-1).expand(-1, -1, BLOCK)).flatten(1)
    rest = scores_RN[:, blocks * BLOCK :]
    values, places = torch.cat([found, rest], 1).topk(count)
    block = places // BLOCK
    inside = chosen.gather(1, block.clamp(max=count - 1)) * BLOCK + places % BLOCK
    return values, torch.where(block < count, inside, places - count * BLOCK + blocks * BLOCK)


def best_one(scores_RN: torch.Tensor) -> torch.Tensor:
    """argmax over the last dimension, (R,): the first of equals."""
    blocks = scores_RN.shape[1] // BLOCK
    if blocks < 4:
        return scores_RN.argmax(1)
    blocked_RNB = scores_RN[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    heads_RN = blocked_RNB.amax(-1)
    block = heads_RN.argmax(1)
    rows = torch.arange(len(block), device=block.device)
    place = block * BLOCK + blocked_RNB[rows, block].argmax(1)
    if scores_RN.shape[1] % BLOCK == 0:
        return place
    head, last = scores_RN[:, blocks * BLOCK :].max(1)
    return torch.where(head > heads_RN[rows, block], last + blocks * BLOCK, place)


def likeliest(logits_RN: torch.Tensor, count: int, ends: Ends, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` tokens with the highest log-probability after `length` tokens, best first: values and ids, (R, M)."""
    parts = [
        best(ends.forbid(part_RN.float().log_softmax(-1), length), count) for part_RN in logits_RN.split(ROWS_IN_CACHE)
    ]
    values, tokens = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(tokens)


def worth_leaving(done_B: torch.Tensor) -> bool:
    """Whether so many sentences are done that the others go on without them: moving their states costs half a step."""
    return int(done_B.sum()) * 8 >= len(done_B)


def greedy_search(steps: Steps, prompt_BT: torch.Tensor, ends: Ends) -> torch.Tensor:
    """The likeliest token each time, (B, T): the prompt, what was written, and pads after it."""
    B, prompt = prompt_BT.shape
    output = prompt_BT.new_full((B, ends.max_length), ends.pad)
    output[:, :prompt] = prompt_BT
    place_B = torch.arange(B, device=prompt_BT.device)
    done_B = torch.zeros(B, dtype=torch.bool, device=prompt_BT.device)
    logits_RN = steps.prompt(prompt_BT)
    parents_B1 = torch.zeros_like(prompt_BT[:, :1])
    length = prompt
    while True:
        tokens_B = best_one(ends.forbid(logits_RN.float(), length))
        tokens_B = tokens_B.masked_fill_(done_B, ends.pad)
        output[place_B, length] = tokens_B
        length += 1
        done_B |= ends.reached(tokens_B.unsqueeze(1), length - prompt, length).squeeze(1)
        if done_B.all():
            return output[:, :length]
        if done_B.any() and worth_leaving(done_B):
            rows = (~done_B).nonzero().squeeze(1)
            steps.keep(rows)
            ends.keep(rows)
            tokens_B, done_B, place_B, parents_B1 = (tensor[rows] for tensor in (tokens_B, done_B, place_B, parents_B1))
        logits_RN = steps.next(tokens_B.unsqueeze(1), parents_B1)


@dataclass
class BeamRules:
    """What transformers' settings say of a beam search."""

    beams: int
    returned: int
    candidates: int  # looked at each step, so many that enough remain when the best ones end
    length_penalty: float
    first_full: bool  # early_stopping=True: a sentence is done when k hypotheses have finished
    # Which sentences may still find better ones, (B, 1), from the same before, scores of the open and of the finished
    # hypotheses (B, k), which of those have finished, length with the prompt, and caps_B.
    hopeful: Callable[..., torch.Tensor]


class Finished:
    """The best finished hypotheses of each sentence, best first; scores are NEVER while fewer have finished."""

    def __init__(self, prompt_BT: torch.Tensor, beams: int, ends: Ends):
        B, T = prompt_BT.shape
        self.tokens_BkT = prompt_BT.new_full((B, beams, ends.max_length), ends.pad)
        self.tokens_BkT[:, :, :T] = prompt_BT.unsqueeze(1)
        self.scores_Bk = torch.full((B, beams), NEVER, device=prompt_BT.device)
        self.ended_Bk = torch.zeros(B, beams, dtype=torch.bool, device=prompt_BT.device)
        self.lengths_Bk = torch.full((B, beams), T, device=prompt_BT.device)

    def enter(self, tokens_BkT: torch.Tensor, scores_Bk: torch.Tensor, ended_Bk: torch.Tensor, pad: int) -> None:
        """The hypotheses of this step that have `ended`."""
        beams, length = self.scores_Bk.shape[1], tokens_BkT.shape[2]
        tokens_BkT = nn.functional.pad(tokens_BkT, (0, self.tokens_BkT.shape[2] - length), value=pad)
        lengths_Bk = torch.full_like(self.lengths_Bk, length)
        scores_BM = torch.cat([self.scores_Bk, scores_Bk.masked_fill(~ended_Bk, NEVER)], 1)
        self.scores_Bk, order_Bk = scores_BM.topk(beams)
        self.tokens_BkT = _gather(torch.cat([self.tokens_BkT, tokens_BkT], 1), order_Bk)
        self.ended_Bk = torch.cat([self.ended_Bk, ended_Bk], 1).gather(1, order_Bk)
        self.lengths_Bk = torch.cat([self.lengths_Bk, lengths_Bk], 1).gather(1, order_Bk)

    def keep(self, rows: torch.Tensor) -> None:
        self.tokens_BkT, self.scores_Bk = self.tokens_BkT[rows], self.scores_Bk[rows]
        self.ended_Bk, self.lengths_Bk = self.ended_Bk[rows], self.lengths_Bk[rows]


def _gather(hypotheses_BMT: torch.Tensor, order_Bk: torch.Tensor) -> torch.Tensor:
    return hypotheses_BMT.gather(1, order_Bk.unsqueeze(-1).expand(-1, -1, hypotheses_BMT.shape[2]))


def beam_search(steps: Steps, prompt_BT: torch.Tensor, ends: Ends, rules: BeamRules) -> torch.Tensor:
    """The `returned` best hypotheses of each sentence, best first, (B x returned, T), with pads after them."""
    (B, prompt), k, M = prompt_BT.shape, rules.beams, rules.candidates
    output_BkT = prompt_BT.new_full((B, rules.returned, ends.max_length), ends.pad)
    longest = prompt
    place_B = torch.arange(B, device=prompt_BT.device)
    finished = Finished(prompt_BT, k, ends)
    open_BkT, scores_Bk = prompt_BT.unsqueeze(1), torch.zeros(B, 1, device=prompt_BT.device)
    hopeful_B1 = torch.ones(B, 1, dtype=torch.bool, device=prompt_BT.device)
    logits_RN = steps.prompt(prompt_BT)
    length = prompt
    while True:
        best_RM, tokens_RM = likeliest(logits_RN, M, ends, length)
        sums_BkM = best_RM.unflatten(0, scores_Bk.shape) + scores_Bk.unsqueeze(-1)
        sums_BM, order_BM = sums_BkM.flatten(1).topk(M)
        parents_BM, tokens_BM = order_BM // M, tokens_RM.view(len(sums_BM), -1).gather(1, order_BM)
        length += 1
        ended_BM = ends.reached(tokens_BM, length - prompt, length)

        # Of the candidates only the first k may finish; the others stand in for them.
        just_Bk = ended_BM[:, :k] & hopeful_B1
        if rules.first_full:
            just_Bk &= ~finished.ended_Bk.all(1, keepdim=True)
        if just_Bk.any():
            grown_BkT = torch.cat([_gather(open_BkT, parents_BM[:, :k]), tokens_BM[:, :k].unsqueeze(-1)], 2)
            finished.enter(grown_BkT, sums_BM[:, :k] / (length - prompt) ** rules.length_penalty, just_Bk, ends.pad)

        scores_Bk, order_Bk = (sums_BM + ended_BM * NEVER).topk(k)
        parents_Bk, tokens_Bk = parents_BM.gather(1, order_Bk), tokens_BM.gather(1, order_Bk)
        open_BkT = torch.cat([_gather(open_BkT, parents_Bk), tokens_Bk.unsqueeze(-1)], 2)
        hopeful_B1 = rules.hopeful(hopeful_B1, scores_Bk, finished.scores_Bk, finished.ended_Bk, length, ends.caps_B)
        done_B = ~hopeful_B1.squeeze(1)
        if rules.first_full:
            done_B |= finished.ended_Bk.all(1)
        over = bool(done_B.all() or ended_BM.all())
        if over or (done_B.any() and worth_leaving(done_B)):
            leaving_B = torch.ones_like(done_B) if over else done_B
            output_BkT[place_B[leaving_B]] = finished.tokens_BkT[leaving_B, : rules.returned]
            longest = max(longest, int(finished.lengths_Bk[leaving_B, : rules.returned].max()))
            if over:
                return output_BkT[:, :, :longest].flatten(0, 1)
            rows = (~done_B).nonzero().squeeze(1)
            steps.keep(rows)
            ends.keep(rows)
            finished.keep(rows)
            place_B, open_BkT, scores_Bk, hopeful_B1, tokens_Bk, parents_Bk = (
                tensor[rows] for tensor in (place_B, open_BkT, scores_Bk, hopeful_B1, tokens_Bk, parents_Bk)
            )
        logits_RN = steps.next(tokens_Bk, parents_Bk)
