"""Translate sentences, and score given translations, in padded batches; results never depend on the batching."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.modeling.modeling_vanilla_transformer import PositionLimitError
from vanilla_transformer.training.evaluation import single_line
from vanilla_transformer.training.memory import is_out_of_memory
from vanilla_transformer.training.read_ahead import read_ahead

# Attention takes memory by the square of the length: a book on one line would end the process without a word.
MAX_SENTENCE_TOKENS = 10_000


class SentenceTooLongError(UserError, PositionLimitError):
    """A sentence, named by its number, has more tokens than learned positions or MAX_SENTENCE_TOKENS allow."""


def decoding_settings(
    model: PreTrainedModel,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    max_new_tokens_over_input: int | None = None,
    batch_tokens: int = 4096,
) -> dict[str, Any]:
    """The settings that `translate` uses, for the results file: those given, else the model's saved ones."""
    if num_beams is not None and num_beams < 1:
        raise UsageError(f"num_beams = {num_beams}: at least 1 beam is needed.")
    if batch_tokens < 1:
        raise UsageError(f"batch_tokens = {batch_tokens}: at least 1 token is needed.")
    if length_penalty is not None and not math.isfinite(length_penalty):
        raise UsageError(f"length_penalty = {length_penalty}: must be a number, for example the paper's 0.6.")
    saved = model.generation_config
    given = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "max_new_tokens_over_input": max_new_tokens_over_input,
    }
    used = {name: getattr(saved, name, None) if value is None else value for name, value in given.items()}
    return {
        "num_beams": used["num_beams"] or 1,
        "length_penalty": 1.0 if used["length_penalty"] is None else used["length_penalty"],
        "max_new_tokens_over_input": used["max_new_tokens_over_input"],
        "length_penalty_type": getattr(saved, "length_penalty_type", None),
        "batch_tokens": batch_tokens,
    }


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    prefix: str | Sequence[str] = "",
    numbers: Sequence[int] | None = None,
    on_progress: Callable[[int], object] | None = None,
    **decoding: Any,
) -> list[str]:
    """One line for each sentence, in order; an empty or blank sentence gives an empty line.

    `decoding` holds num_beams, length_penalty, max_new_tokens_over_input (a cap for each sentence) and batch_tokens
    (source tokens of a batch with its padding); what is left out is as saved with the model. `prefix` is the text that
    translations must begin with, one for all or one for each. `numbers` are what errors call the sentences, default 1,
    2, 3, ... `on_progress` gets the number of sentences each batch finished. Line breaks in a translation become
    spaces. The model's training mode is as before afterwards. Raises SentenceTooLongError, before any work, for a
    sentence longer than learned positions or MAX_SENTENCE_TOKENS, UserError where the memory does not hold a batch.
    """
    settings = _search_settings(model, 1, decoding)
    encoded = _encode(model, tokenizer, sentences, prefix, numbers)
    translations = _decode(model, tokenizer, encoded, 1, settings, on_progress, scored=False)
    return [candidates[0][0] for candidates in translations]


def translate_nbest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    n: int,
    *,
    prefix: str | Sequence[str] = "",
    numbers: Sequence[int] | None = None,
    on_progress: Callable[[int], object] | None = None,
    **decoding: Any,
) -> list[list[tuple[str, float]]]:
    """For each sentence its `n` best translations with their scores, best first; a blank sentence has [("", 0.0)].

    A score is what the beam search ranked by: log P(translation | source) over the tokens after the prefix, divided by
    the length penalty, ((5 + length) / 6) ** alpha for GNMT. With num_beams=1 and n=1, of the greedy translation.
    """
    settings = _search_settings(model, n, decoding)
    encoded = _encode(model, tokenizer, sentences, prefix, numbers)
    return _decode(model, tokenizer, encoded, n, settings, on_progress, scored=True)


def translate_stream(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Iterable[str],
    *,
    chunk_lines: int = 1024,
    prefix: str = "",
    **decoding: Any,
) -> Iterator[str]:
    """Translations of lines as they come, in order; `prefix` and `decoding` as for `translate`.

    Reads `chunk_lines` lines, sorts them into batches and yields their translations; 1 answers each line at once. The
    next chunk is read and tokenised in a thread meanwhile, so memory stays bounded and no answer waits for it.
    """
    settings = _search_settings(model, 1, decoding)
    for chunk in read_ahead(_chunks(model, tokenizer, lines, chunk_lines, prefix)):
        for candidates in _decode(model, tokenizer, chunk, 1, settings, scored=False):
            yield candidates[0][0]


def translate_nbest_stream(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Iterable[str],
    n: int,
    *,
    chunk_lines: int = 1024,
    prefix: str = "",
    **decoding: Any,
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """`translate_nbest` of lines as they come, as in `translate_stream`: each line with its translations."""
    settings = _search_settings(model, n, decoding)
    for chunk in read_ahead(_chunks(model, tokenizer, lines, chunk_lines, prefix)):
        yield from zip(chunk.sentences, _decode(model, tokenizer, chunk, n, settings, scored=True), strict=True)


def translate_sharded(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], **options: Any
) -> list[str]:
    """`translate` with the sentences divided over Accelerate's processes; each of them returns all lines in order.

    Every process must call it with the same sentences. Process r translates sentences[r::processes]. An error in one
    process is raised in all, none waits for ever. The model is the unwrapped one, whole on each process.
    """
    from accelerate.utils import gather_object

    from vanilla_transformer.training.processes import joined_processes, lost_process_said

    state = joined_processes()
    if state.num_processes == 1:
        return translate(model, tokenizer, sentences, **options)
    failure: Exception | None = None
    share: list[str] = []
    mine = slice(state.process_index, None, state.num_processes)
    try:
        numbers = range(1, len(sentences) + 1)[mine]
        share = translate(model, tokenizer, sentences[mine], numbers=numbers, **options)
    except Exception as error:  # whatever it is, the other processes wait for this one
        failure = error
    with lost_process_said("Start it again."):
        shares = gather_object([(state.process_index, share, repr(failure) if failure else None)])
    if failure:
        raise failure
    if failed := [f"process {rank}: {error}" for rank, _, error in shares if error]:
        raise UserError("Translating failed in another process.\n" + "\n".join(failed))
    translations = [""] * len(sentences)
    for rank, share, _ in shares:
        translations[rank :: state.num_processes] = share
    return translations


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    per_token: bool = False,
    batch_tokens: int = 4096,
) -> list[float]:
    """log P(target | source), natural, `</s>` included, of each pair; per_token divides by the number of target tokens.

    `batch_tokens` bounds a batch's padded tokens on the longer side.
    """
    if len(sources) != len(targets):
        raise UserError(f"{len(sources)} sources but {len(targets)} targets: both need the same number of lines.")
    source_ids = _token_ids(tokenizer, text=list(sources))
    target_ids = _token_ids(tokenizer, text_target=list(targets))
    check_lengths(model.config, "max_source_positions", dict(enumerate(source_ids, start=1)))
    check_lengths(model.config, "max_target_positions", dict(enumerate(target_ids, start=1)))
    longer = [max(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)]
    scores = [0.0] * len(sources)
    with _evaluating(model):
        for batch in _batches(longer, [0] * len(longer), batch_tokens):
            inputs = _padded(model, [source_ids[i] for i in batch])
            rows = [target_ids[i] for i in batch]
            with _within_memory(inputs, batch_tokens):
                table = _log_probabilities(model, inputs, rows)
            for i, log_probabilities in zip(batch, table, strict=True):
                scores[i] = log_probabilities.sum().item() / (len(log_probabilities) if per_token else 1)
    return scores


@dataclass(frozen=True)
class _Encoded:
    """Sentences, and the token ids of those that hold a word: `worded` are their indices."""

    sentences: Sequence[str]
    worded: list[int]
    source_ids: list[list[int]]
    prefix_ids: list[list[int]]


def _encode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    prefix: str | Sequence[str],
    numbers: Sequence[int] | None,
) -> _Encoded:
    """Tokenise; a sentence that is too long is named by its number."""
    prefixes = [prefix] * len(sentences) if isinstance(prefix, str) else list(prefix)
    if len(prefixes) != len(sentences):
        raise UsageError(f"{len(prefixes)} prefixes for {len(sentences)} sentences; give one for all or one for each.")
    worded = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    source_ids = _token_ids(tokenizer, text=[sentences[i] for i in worded])
    prefix_ids = _token_ids(tokenizer, text_target=[prefixes[i] for i in worded], add_special_tokens=False)
    numbers = numbers or range(1, len(sentences) + 1)
    numbered: dict[int | str, list[int]] = {numbers[i]: ids for i, ids in zip(worded, source_ids, strict=True)}
    check_lengths(model.config, "max_source_positions", numbered)
    return _Encoded(sentences, worded, source_ids, prefix_ids)


def _chunks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Iterable[str], chunk_lines: int, prefix: str
) -> Iterator[_Encoded]:
    lines, read = iter(lines), 0
    while sentences := list(islice(lines, chunk_lines)):
        yield _encode(model, tokenizer, sentences, prefix, range(read + 1, read + len(sentences) + 1))
        read += len(sentences)


def _decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoded: _Encoded,
    n: int,
    settings: dict[str, Any],
    on_progress: Callable[[int], object] | None = None,
    *,
    scored: bool,
) -> list[list[tuple[str, float]]]:
    """For each sentence its `n` best translations with their scores, 0.0 where they are not `scored`."""
    worded, source_ids, prefix_ids = encoded.worded, encoded.source_ids, encoded.prefix_ids
    results: list[list[tuple[str, float]]] = [[("", 0.0)] for _ in encoded.sentences]
    if on_progress and len(worded) < len(results):
        on_progress(len(results) - len(worded))
    options, start_id = _search_options(settings, n), model.generation_config.decoder_start_token_id
    # Prefixes of different length would need padding on the decoder's left, so they go into different batches.
    batches = _batches([len(ids) for ids in source_ids], [len(ids) for ids in prefix_ids], settings["batch_tokens"])
    generate = cast(Callable[..., torch.Tensor], model.generate)
    with _evaluating(model), weights_unchanged(model):
        for batch in batches:
            inputs = _padded(model, [source_ids[i] for i in batch])
            start = [[start_id, *prefix_ids[i]] for i in batch]
            start_ids = torch.tensor(start, device=model.device)
            with _within_memory(inputs, settings["batch_tokens"]):
                sequences = generate(**inputs, decoder_input_ids=start_ids, **options)
            texts = tokenizer.batch_decode(
                sequences[:, 1:], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            scores = [0.0] * len(texts)
            if scored:
                scores = _search_scores(model, inputs, sequences, len(start[0]) - 1, n, settings)
            for row, i in enumerate(batch):
                candidates = range(row * n, row * n + n)
                results[worded[i]] = [(single_line(texts[c]), scores[c]) for c in candidates]
            if on_progress:
                on_progress(len(batch))
    return results


def _search_settings(model: PreTrainedModel, n: int, decoding: Mapping[str, Any]) -> dict[str, Any]:
    settings = decoding_settings(model, **decoding)
    if not 1 <= n <= settings["num_beams"]:
        raise UsageError(f"{n} translations of each sentence need n from 1 to num_beams = {settings['num_beams']}.")
    return settings


def _search_options(settings: dict[str, Any], n: int) -> dict[str, Any]:
    """`settings` as arguments of `generate`, which takes what they leave out from the saved generation config."""
    options: dict[str, Any] = {"num_beams": settings["num_beams"], "num_return_sequences": n, "do_sample": False}
    if settings["max_new_tokens_over_input"] is not None:  # our models alone know it
        options["max_new_tokens_over_input"] = settings["max_new_tokens_over_input"]
    if settings["num_beams"] > 1:
        return options | {"length_penalty": settings["length_penalty"]}
    # transformers warns about settings that greedy decoding does not use
    return options | {"length_penalty": 1.0, "early_stopping": False}


def _search_scores(
    model: PreTrainedModel,
    inputs: dict[str, torch.Tensor],
    sequences: torch.Tensor,
    prefix_length: int,
    n: int,
    settings: dict[str, Any],
) -> list[float]:
    """What the search ranked `sequences` (B * n, 1 + prefix + T) by, from one more forward pass over them.

    generate's own `sequences_scores` exist only when it keeps the scores of the whole vocabulary at every step,
    gigabytes for a batch of real size, and never for greedy decoding.
    """
    config = model.generation_config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    rows = []
    for tokens in sequences[:, 1:].tolist():
        # A sentence that the cap ended has no </s>, and then nothing but padding follows it.
        length = next((i + 1 for i in range(prefix_length, len(tokens)) if tokens[i] in ends), len(tokens))
        while length > prefix_length and tokens[length - 1] == config.pad_token_id:
            length -= 1
        rows.append(tokens[:length])
    inputs = {name: tensor.repeat_interleave(n, 0) for name, tensor in inputs.items()}
    rows_at_once = max(1, settings["batch_tokens"] // max(sequences.shape[1], inputs["input_ids"].shape[1]))
    scores = []
    for first in range(0, len(rows), rows_at_once):
        part = slice(first, first + rows_at_once)
        part_inputs = {name: tensor[part] for name, tensor in inputs.items()}
        for log_probabilities in _log_probabilities(model, part_inputs, rows[part]):
            generated = log_probabilities[prefix_length:]
            scores.append(generated.sum().item() / _length_penalty(len(generated), settings))
    return scores


def _length_penalty(length: int, settings: dict[str, Any]) -> float:
    if settings["length_penalty_type"] == "gnmt":
        return ((5 + length) / 6) ** settings["length_penalty"]  # Wu et al. 2016, equation 14
    return length ** settings["length_penalty"]


def _log_probabilities(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], rows: list[list[int]]
) -> list[torch.Tensor]:
    """log P of each token of each row given the source and the row's tokens before it: one float32 vector a row."""
    start_id = model.generation_config.decoder_start_token_id
    decoder = _padded(model, [[start_id, *row[:-1]] for row in rows])
    labels = _padded(model, rows)["input_ids"]
    # No decoder mask: padding comes last, where a causal decoder does not look, and its columns are not read below.
    logits = model(**inputs, decoder_input_ids=decoder["input_ids"]).logits
    log_probabilities = -F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
    table = log_probabilities.view(labels.shape).cpu()
    return [table[i, : len(row)] for i, row in enumerate(rows)]


def _token_ids(tokenizer: PreTrainedTokenizerBase, **texts: Any) -> list[list[int]]:
    if not (texts.get("text") or texts.get("text_target")):
        return []
    return tokenizer(**texts, padding=False, truncation=False, return_attention_mask=False)["input_ids"]


def check_lengths(config: PreTrainedConfig, field: str, numbered: Mapping[int | str, Sequence[int]]) -> None:
    """Raise SentenceTooLongError for the first of the numbered rows of token ids that is too long for the model."""
    learned = getattr(config, "positional_encoding", None) == "learned"
    limit = getattr(config, field) if learned else MAX_SENTENCE_TOKENS
    for number, ids in numbered.items():
        if len(ids) > limit:
            raise SentenceTooLongError(
                f"Sentence {number} has {len(ids)} tokens, but the model's learned positions end at {field} = {limit}; "
                "shorten it, or use a model with a larger table or with sinusoidal positions."
                if learned
                else f"Sentence {number} has {len(ids):,} tokens; no more than {limit:,} are translated at once. Put "
                "each sentence on a line of its own."
            )


def _padded(model: PreTrainedModel, rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Token ids (B, L) padded on the right and their mask, on the model's device."""
    longest, pad_id = max(len(row) for row in rows), model.generation_config.pad_token_id
    ids = [row + [pad_id] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=model.device),
        "attention_mask": torch.tensor(mask, device=model.device),
    }


def _batches(lengths: Sequence[int], groups: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices in batches of at most `batch_tokens` padded tokens and of one group; a longer sentence stands alone.

    Longest first, so that a batch too large for the memory fails at once and the progress bar speeds up.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (groups[i], -lengths[i])):
        if batches:
            first = batches[-1][0]
            if groups[first] == groups[i] and (len(batches[-1]) + 1) * lengths[first] <= batch_tokens:
                batches[-1].append(i)
                continue
        batches.append([i])
    return batches


def weights_unchanged(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Inside, nobody changes the model's weights: our own model packs them for decoding once, not for each batch."""
    promise = getattr(model, "weights_unchanged", None)
    return promise() if promise is not None else nullcontext()


@contextmanager
def _within_memory(inputs: dict[str, torch.Tensor], batch_tokens: int) -> Iterator[None]:
    """Turn an allocator's giving up into a sentence."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        sentences, longest = inputs["input_ids"].shape
        raise UserError(
            f"Out of memory on {sentences} sentences of up to {longest} tokens at once; lower batch_tokens = "
            f"{batch_tokens} or the number of beams, or use bfloat16."
        ) from error


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode without gradients; every module gets its own training flag back, frozen ones too."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
