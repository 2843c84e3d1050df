"""Corpus BLEU, chrF and TER that anyone can repeat: every figure carries the signature of how it was made."""

import errno
import hashlib
import logging
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.durable import sha256, write_json, write_text
from vanilla_transformer.training.model_facts import WEIGHTS
from vanilla_transformer.training.scoring_tokenizers import east_asian_language, scoring_tokenizer
from vanilla_transformer.training.tokenised_bleu import LOWERCASE_TOKENIZED, PAPER, tokenised_scorer
from vanilla_transformer.training.write_errors import explained

logger = logging.getLogger(__name__)

# The names a recipe may ask for; chrf is chrF2, chrf++ adds word bigrams.
METRICS = ("bleu", "chrf", "chrf++", "ter")
# Test sets drawn for a confidence interval. sacrebleu holds all of them at once: a gigabyte for 10,000 sentences and
# chrF, and nobody needs an interval of so many.
RESAMPLES = 1000
MOST_RESAMPLED_SENTENCES = 10_000
# sacrebleu: those alone; paper: also the tokenised BLEU that Vaswani et al. 2017 report.
SCORINGS = ("sacrebleu", "paper")
_INSTALL = {
    "ja-mecab": "install the extra: pip install 'vanilla-transformer[ja]'",
    "ko-mecab": "install the extra: pip install 'vanilla-transformer[ko]'",
}
_EAST_ASIAN_TEXT = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]")


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    target_lang: str | None = None,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase_tokenized: bool = False,
    tokenize: str | None = None,
    resamples: int = 1,
    scoring: str = "sacrebleu",
) -> dict[str, dict[str, Any]]:
    """Scores in percent of N hypotheses against N references, or against several reference streams of N lines each.

    Computed by sacrebleu; each entry holds `score` and `signature`, BLEU also `precisions`, `bp` (brevity penalty),
    `sys_len`, `ref_len`, `counts` and `totals`, under sacrebleu's own names. BLEU's tokenizer follows `target_lang`
    (Chinese zh, Japanese ja-mecab, Korean ko-mecab, otherwise 13a) unless `tokenize` names one; TER cuts Chinese and
    Japanese into characters, as its signature says. `metrics` may name bleu, chrf (chrF2), chrf++ and ter.
    `lowercase_tokenized` adds `bleu_lowercase_tokenized`, the figure of Moses' multi-bleu.perl on lower-cased,
    normalised and tokenised text, which papers on Multi30k report; `scoring="paper"` adds `bleu_paper`, that of
    tokenised text with German compounds cut, which the Transformer's paper reports. `resamples` above 1 adds
    `confidence_interval`, which holds 95% of the scores of so many test sets drawn from this one with replacement
    (sacrebleu's bootstrap).

    Raises UserError where the counts do not match, UsageError for a name that does not exist.
    """
    streams = reference_streams(hypotheses, references)
    if target_lang is None and tokenize is None and _is_east_asian(streams[0]):
        logger.warning(
            "No target language was given and the references look Chinese, Japanese or Korean: BLEU with the tokenizer "
            "13a is meaningless there. Give the language, for example target_lang='zh'."
        )
    scores: dict[str, dict[str, Any]] = {}
    for name, metric in _scorers(target_lang, metrics, lowercase_tokenized, tokenize, scoring).items():
        scored, scored_streams, prepared = list(hypotheses), streams, ""
        if name in (LOWERCASE_TOKENIZED, PAPER):
            _, tokenised, prepared = tokenised_scorer(name, target_lang)
            scored, *scored_streams = (tokenised(lines) for lines in (scored, *streams))
        try:
            result = metric.corpus_score(scored, scored_streams, resamples)
        except TypeError:  # sacrebleu cannot average over a resample without a word, as one of three sentences may be
            result = metric.corpus_score(scored, scored_streams)
        # Signatures know the number of references, so they exist only after scoring. The bootstrap is no part of ours:
        # it changes nothing about the score, and figures are compared by their signatures.
        signature = metric.get_signature()
        seed = signature.info["seed"]
        for key in ("bs", "seed"):
            signature.update(key, None)
        scores[name] = {"score": result.score, "signature": signature.format() + prepared}
        if result._ci >= 0:  # -1 where there was no bootstrap
            low, high = float(result._mean - result._ci), float(result._mean + result._ci)
            scores[name]["confidence_interval"] = {"low": low, "high": high, "level": 0.95}
            scores[name]["confidence_interval"] |= {"resamples": resamples, "seed": seed}
        if isinstance(metric, BLEU):
            fields = ("precisions", "bp", "sys_len", "ref_len", "counts", "totals")
            scores[name] |= {field: getattr(result, field) for field in fields}
    return scores


def _scorers(
    target_lang: str | None,
    metrics: Sequence[str],
    lowercase_tokenized: bool,
    tokenize: str | None,
    scoring: str,
) -> dict[str, Metric]:
    """sacrebleu's scorers by name; everything that can be wrong with the request is raised here, before any work."""
    east_asian = east_asian_language(target_lang)
    characters = east_asian in ("zh", "ja")
    scorers: dict[str, Metric] = {}
    for name in metrics:
        if name == "bleu":
            scorers[name] = _bleu_scorer(tokenize or scoring_tokenizer(target_lang))
        elif name == "ter":
            scorers[name] = TER(normalized=characters, asian_support=characters)
        elif name in METRICS:
            scorers[name] = CHRF(word_order=2 if name == "chrf++" else 0)
        else:
            raise UsageError(f"Unknown metric {name}; choose from {', '.join(METRICS)}.")
    if scoring not in SCORINGS:
        raise UsageError(f"Unknown scoring {scoring}; choose from {', '.join(SCORINGS)}.")
    for name, wanted in ((LOWERCASE_TOKENIZED, lowercase_tokenized), (PAPER, scoring == "paper")):
        if wanted:
            scorers[name], *_ = tokenised_scorer(name, target_lang)
    return scorers


def _bleu_scorer(tokenize: str) -> BLEU:
    if tokenize not in BLEU.TOKENIZERS:
        raise UsageError(f"Unknown BLEU tokenizer {tokenize}; choose from {', '.join(BLEU.TOKENIZERS)}.")
    try:
        # force only silences sacrebleu's warning about lines that look tokenised, where the caller said they are
        return BLEU(tokenize=tokenize, force=tokenize == "none")
    except (RuntimeError, ImportError, OSError) as error:
        remedy = _INSTALL.get(tokenize, "it may need a download or a package")
        reason = " ".join(str(error).split())
        raise UserError(f"The BLEU tokenizer {tokenize} cannot be used here; {remedy}. ({reason})") from error


def reference_streams(
    lines: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], what: str = "hypotheses"
) -> list[list[str]]:
    """The references as streams with one reference for each of `lines`; UserError names the counts that do not fit.

    sacrebleu itself takes a transposed list (one list a sentence) without a word and gives a wrong score.
    """
    count = len(lines)
    if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
        raise UserError(f"The {what} must be a list of strings, one a sentence.")
    if not count:
        raise UserError(f"There are no {what}, so there is nothing to score.")
    if isinstance(references, str) or not references:
        raise UserError("The references must be a list of strings or a list of reference streams, and not empty.")
    one_stream = any(isinstance(part, str) for part in references)
    streams: list[list[Any]] = [list(references)] if one_stream else [list(stream) for stream in references]
    if not all(isinstance(line, str) for stream in streams for line in stream):
        raise UserError("A reference is not a string; give a list of strings or a list of streams of strings.")
    lengths = [len(stream) for stream in streams]
    if set(lengths) == {count}:
        return streams
    if len(streams) == count > 1 and len(set(lengths)) == 1:
        raise UserError(
            f"The references are {count} lists of {lengths[0]} for {count} {what}, which is transposed: give "
            f"{lengths[0]} streams of {count} lines, as [list(stream) for stream in zip(*references)] makes them."
        )
    counts = ", ".join(str(length) for length in lengths[:8]) + (", ..." if len(lengths) > 8 else "")
    of_streams = f" in {len(streams)} streams" if len(streams) > 1 else ""
    raise UserError(
        f"{count} {what} but {counts} references{of_streams}: line i answers line i, so the numbers must be equal."
    )


def _is_east_asian(lines: Sequence[str]) -> bool:
    """Whether most lines with any letter hold Chinese, Japanese or Korean characters; the first 100 lines decide."""
    worded = [line for line in lines[:100] if any(character.isalpha() for character in line)]
    return sum(bool(_EAST_ASIAN_TEXT.search(line)) for line in worded) * 2 > len(worded)


def evaluate_hypotheses(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    target_lang: str | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    name: str = "test",
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase_tokenized: bool = False,
    tokenize: str | None = None,
    scoring: str = "sacrebleu",
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Scores with what is needed to trust them: intervals, counts, SHA-256 of each text, versions, `details`.

    With `output_dir`, writes NAME.hypotheses.txt (exactly N lines, UTF-8) and NAME.json, each whole or
    not at all. A line break inside a hypothesis becomes a space, so that line i of the file answers line i of the
    references; the hashes are those of `sha256sum` on such files, with a newline after every line.
    """
    lines = [single_line(hypothesis) for hypothesis in hypotheses]
    streams = reference_streams(lines, references)
    if output_dir is not None:
        _require_writable(Path(output_dir), name)
    resamples = RESAMPLES if len(lines) <= MOST_RESAMPLED_SENTENCES else 1
    result: dict[str, Any] = {
        "name": name,
        "target_lang": target_lang,
        "scores": corpus_scores(
            lines, streams, target_lang, metrics, lowercase_tokenized, tokenize, resamples, scoring
        ),
        "sentences": len(lines),
        "empty_hypotheses": sum(not line.strip() for line in lines),
        "reference_streams": len(streams),
        "sha256": {"hypotheses": _sha256(lines), "references": [_sha256(stream) for stream in streams]},
        **(details or {}),
        "versions": _versions(),
    }
    if output_dir is not None:
        folder = Path(output_dir)
        scores = ", ".join(f"{metric} {score['score']:.2f}" for metric, score in result["scores"].items())
        with explained(f"The results {folder / name}", f"Make room and evaluate again. The scores are: {scores}."):
            # the scores last: where they exist, their hypotheses do
            write_text(folder / f"{name}.hypotheses.txt", _text(lines))
            write_json(folder / f"{name}.json", result)
    return result


def _require_writable(folder: Path, name: str) -> None:
    """Make the folder of the results; what is wrong with it or with their name is said before the work, not after."""
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"name = {name}: is a part of file names in the output folder; give a word, such as test.")
    with explained(f"The output folder {folder}", "Choose another one."):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def evaluate_model(
    model_path: str | os.PathLike[str],
    sources: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    target_lang: str | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    name: str = "test",
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase_tokenized: bool = False,
    tokenize: str | None = None,
    scoring: str = "sacrebleu",
    device: str | None = None,
    precision: str = "float32",
    on_progress: Callable[[int], object] | None = None,
    split: str | None = None,
    details: Mapping[str, Any] | None = None,
    **decoding: Any,
) -> dict[str, Any]:
    """Translate a test set with a saved or Hub model and score it, as `evaluate_hypotheses` does.

    `target_lang` comes from the model's config where it is not given. `split` says which one of its run's
    corpus the sentences are, for the model's card; `details` goes into the result. `decoding` are the settings of
    `translation.translate`; those left out are the model's own. `on_progress` gets the number of sentences
    that each batch finished. Started on several processes (torchrun, accelerate launch), each translates its share; all
    return the same result and the main one writes the files.
    """
    from vanilla_transformer.training.processes import joined_processes
    from vanilla_transformer.training.saved_model import load_model
    from vanilla_transformer.training.translation import decoding_settings, translate_sharded

    sources = list(sources)
    # What can be wrong with the request is found before minutes of decoding, not after.
    streams = reference_streams(sources, references, what="source lines")
    model, tokenizer = load_model(model_path, device=device, precision=precision)
    target_lang = target_lang or getattr(model.config, "target_lang", None)
    _scorers(target_lang, metrics, lowercase_tokenized, tokenize, scoring)
    if output_dir is not None:
        _require_writable(Path(output_dir), name)
    start = time.perf_counter()
    hypotheses = translate_sharded(model, tokenizer, sources, on_progress=on_progress, **decoding)
    seconds = time.perf_counter() - start
    state = joined_processes()
    weights = Path(model_path) / WEIGHTS
    details = {
        **(details or {}),
        "model": str(model_path),
        # Says which model the scores are of, wherever the folder is moved to.
        **({"weights_sha256": sha256(weights)} if weights.is_file() else {}),
        **({"split": split} if split else {}),
        "source_lang": getattr(model.config, "source_lang", None),
        "source_sha256": _sha256(sources),
        "decoding": decoding_settings(model, **decoding),
        "precision": precision,
        "device": model.device.type,
        "processes": state.num_processes,
        "seconds": round(seconds, 3),
        "sentences_per_second": round(len(sources) / seconds, 2),
    }
    folder = output_dir if state.is_main_process else None
    return evaluate_hypotheses(
        hypotheses, streams, target_lang, folder, name, metrics, lowercase_tokenized, tokenize, scoring, details
    )


def single_line(text: str) -> str:
    """The text with each line break, and the blanks around it, turned into one space; other text is left as it is."""
    return re.sub(r"[ \t]*[\r\n]+[ \t]*", " ", text) if "\n" in text or "\r" in text else text


def _text(lines: Sequence[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256(_text(lines).encode()).hexdigest()


def _versions() -> dict[str, str]:
    names = ("vanilla-transformer", "sacrebleu", "sacremoses", "transformers", "tokenizers", "torch")
    return {name: version(name) for name in names} | {"python": platform.python_version()}
