"""Corpus BLEU, chrF and TER that anyone can repeat: every figure carries the signature of how it was made."""

import hashlib
import json
import logging
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.languages import east_asian_language, moses_language, scoring_tokenizer

logger = logging.getLogger(__name__)

METRICS = ("bleu", "chrf", "chrf++", "ter")
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
) -> dict[str, dict[str, Any]]:
    """Scores in percent of N hypotheses against N references, or against several reference streams of N lines each.

    Computed by sacrebleu; each entry holds `score` and `signature`, BLEU also `precisions`, `bp` (brevity penalty),
    `sys_len`, `ref_len`, `counts` and `totals`, under sacrebleu's own names. BLEU's tokenizer follows `target_lang`
    (Chinese zh, Japanese ja-mecab, Korean ko-mecab, otherwise 13a) unless `tokenize` names one; TER cuts Chinese and
    Japanese into characters, as its signature says. `metrics` may name bleu, chrf (chrF2), chrf++ and ter.
    `lowercase_tokenized` adds `bleu_lowercase_tokenized`, the figure of Moses' multi-bleu.perl on lower-cased,
    normalised and tokenised text, which papers on Multi30k report; it reads about 1 above the others' scale.

    Raises UserError where the counts do not match, UsageError for a name that does not exist.
    """
    streams = reference_streams(hypotheses, references)
    if unknown := [name for name in metrics if name not in METRICS]:
        raise UsageError(f"Unknown metric {', '.join(unknown)}; choose from {', '.join(METRICS)}.")
    if target_lang is None and tokenize is None and _is_east_asian(streams[0]):
        logger.warning(
            "No target language was given and the references look Chinese, Japanese or Korean: BLEU with the tokenizer "
            "13a is meaningless there. Give the language, for example target_lang='zh'."
        )
    asian = east_asian_language(target_lang) in ("zh", "ja")
    scores: dict[str, dict[str, Any]] = {}
    for name in metrics:
        if name == "bleu":
            scores[name] = _bleu(_bleu_metric(tokenize or scoring_tokenizer(target_lang)), hypotheses, streams)
        else:
            metric = (
                TER(normalized=asian, asian_support=asian)
                if name == "ter"
                else CHRF(word_order=2 if name == "chrf++" else 0)
            )
            scores[name] = {
                "score": metric.corpus_score(list(hypotheses), streams).score,
                "signature": metric.get_signature().format(),
            }
    if lowercase_tokenized:
        scores["bleu_lowercase_tokenized"] = _lowercase_tokenized_bleu(hypotheses, streams, target_lang)
    return scores


def reference_streams(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """The references as streams, each with one line for each hypothesis; UserError names the counts that do not fit.

    sacrebleu itself takes a transposed list (one list a sentence) without a word and gives a wrong score.
    """
    count = len(hypotheses)
    if isinstance(hypotheses, str) or not all(isinstance(line, str) for line in hypotheses):
        raise UserError("Hypotheses must be a list of strings, one a sentence.")
    if not count:
        raise UserError("There are no hypotheses to score.")
    if isinstance(references, str) or not references:
        raise UserError("References must be a list of strings, or a list of reference streams; got none.")
    if all(isinstance(line, str) for line in references):
        streams = [[str(line) for line in references]]
    elif any(isinstance(stream, str) for stream in references):
        raise UserError("References mix strings and lists; give a list of strings or a list of reference streams.")
    else:
        streams = [list(stream) for stream in references]
    lengths = [len(stream) for stream in streams]
    if len(streams) == count != lengths[0] and len(set(lengths)) == 1:
        raise UserError(
            f"{count} hypotheses but {count} lists of {lengths[0]} references: this is transposed. Give {lengths[0]} "
            f"reference streams of {count} lines each, for example [list(stream) for stream in zip(*references)]."
        )
    if any(length != count for length in lengths):
        counts = ", ".join(str(length) for length in lengths[:8]) + (", ..." if len(lengths) > 8 else "")
        raise UserError(
            f"{count} hypotheses but {counts} references: each of the {len(streams)} reference streams needs "
            f"exactly one line for each hypothesis, in the same order."
            if len(streams) > 1
            else f"{count} hypotheses but {counts} references: both need the same number of lines in the same order."
        )
    if not all(isinstance(line, str) for stream in streams for line in stream):
        raise UserError("References must be strings; one of them is not (a missing translation?).")
    return streams


def moses_lowercase_tokenized(lines: Sequence[str], lang: str) -> list[str]:
    """Lines after Moses' lowercase.perl, normalize-punctuation.perl -l LANG and tokenizer.perl -l LANG, in that order.

    Escapes as the Perl scripts do (`&apos;`, `&quot;`). Byte for byte the tok/ files of Multi30k (test_evaluation.py).
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer = MosesPunctNormalizer(lang=lang, perl_parity=True)
    tokenizer = MosesTokenizer(lang=lang)
    # The Perl script sees the line's end: one of its rules for quotation marks needs a character there.
    return [tokenizer.tokenize(normalizer.normalize(line.lower() + "\n"), return_str=True) for line in lines]


def _lowercase_tokenized_bleu(
    hypotheses: Sequence[str], streams: list[list[str]], target_lang: str | None
) -> dict[str, Any]:
    if target_lang is None or east_asian_language(target_lang):
        raise UsageError(
            f"The lower-cased tokenised BLEU needs a target language that Moses can tokenise; got {target_lang}. "
            "Turn lowercase_tokenized off or give the language."
        )
    lang = moses_language(target_lang)
    # multi-bleu.perl: whitespace tokens, no smoothing, the closest reference length. The text is lower-cased already,
    # so lowercase=True changes nothing but makes the signature say so.
    metric = BLEU(tokenize="none", smooth_method="none", lowercase=True, force=True)
    scores = _bleu(
        metric,
        moses_lowercase_tokenized(hypotheses, lang),
        [moses_lowercase_tokenized(stream, lang) for stream in streams],
    )
    scores["signature"] += f"|pre:moses-lc-norm-tok-{lang}|sacremoses:{version('sacremoses')}"
    return scores


def _bleu_metric(tokenize: str) -> BLEU:
    if tokenize not in BLEU.TOKENIZERS:
        raise UsageError(f"Unknown BLEU tokenizer {tokenize}; choose from {', '.join(BLEU.TOKENIZERS)}.")
    try:
        # force only silences sacrebleu's warning about lines that look tokenised where the caller asked for that
        return BLEU(tokenize=tokenize, force=tokenize == "none")
    except (RuntimeError, ImportError, OSError) as error:
        remedy = _INSTALL.get(tokenize, "it may need a download or a package")
        raise UserError(f"The BLEU tokenizer {tokenize} cannot be used here; {remedy}. ({_one_line(error)})") from error


def _bleu(metric: BLEU, hypotheses: Sequence[str], streams: list[list[str]]) -> dict[str, Any]:
    result = metric.corpus_score(list(hypotheses), streams)
    signature = metric.get_signature().format()
    fields = ("score", "precisions", "bp", "sys_len", "ref_len", "counts", "totals")
    return {"signature": signature} | {field: getattr(result, field) for field in fields}


def _is_east_asian(lines: Sequence[str]) -> bool:
    """Whether most lines with any letter hold Chinese, Japanese or Korean characters; the first 100 lines decide."""
    worded = [line for line in lines[:100] if any(character.isalpha() for character in line)]
    return sum(bool(_EAST_ASIAN_TEXT.search(line)) for line in worded) * 2 > len(worded)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def evaluate_hypotheses(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    target_lang: str | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    name: str = "test",
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase_tokenized: bool = False,
    tokenize: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Scores with all that is needed to trust them: counts, SHA-256 of each text, versions, and `details` of the caller.

    With `output_dir`, writes NAME.hypotheses.txt (exactly N lines, UTF-8) and NAME.json, each under a temporary name
    first. A line break inside a hypothesis becomes a space, so that line i of the file answers line i of the
    references; the hashes are those of `sha256sum` on such files, with a newline after every line.
    """
    lines = [single_line(hypothesis) for hypothesis in hypotheses]
    streams = reference_streams(lines, references)
    result: dict[str, Any] = {
        "name": name,
        "target_lang": target_lang,
        "scores": corpus_scores(lines, streams, target_lang, metrics, lowercase_tokenized, tokenize),
        "sentences": len(lines),
        "empty_hypotheses": sum(not line.strip() for line in lines),
        "reference_streams": len(streams),
        "sha256": {"hypotheses": _sha256(lines), "references": [_sha256(stream) for stream in streams]},
        **(details or {}),
        "versions": _versions(),
    }
    if output_dir is not None:
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        # the scores last: where they exist, their hypotheses do
        _write_whole(folder / f"{name}.hypotheses.txt", _text(lines))
        _write_whole(folder / f"{name}.json", json.dumps(result, ensure_ascii=False, indent=2) + "\n")
    return result


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
    device: str | None = None,
    precision: str = "float32",
    on_progress: Callable[[int], object] | None = None,
    **decoding: Any,
) -> dict[str, Any]:
    """Translate a test set with a saved or Hub model and score it, as `evaluate_hypotheses` does.

    `target_lang` comes from the model's config where it is not given. `decoding` are the settings of
    `translation.translate`; those left out are the model's own. `on_progress` gets the number of sentences that each
    batch finished. Started on several processes (torchrun, accelerate launch), each translates its share; all return
    the same result and the main one writes the files.
    """
    from accelerate import PartialState

    from vanilla_transformer.training.translation import decoding_settings, load_model, translate_sharded

    sources = list(sources)
    # before minutes of decoding, not after; each source line stands for its future hypothesis
    streams = reference_streams(sources, references)
    model, tokenizer = load_model(model_path, device=device, precision=precision)
    target_lang = target_lang or getattr(model.config, "target_lang", None)
    if "bleu" in metrics:
        _bleu_metric(tokenize or scoring_tokenizer(target_lang))
    start = time.perf_counter()
    hypotheses = translate_sharded(model, tokenizer, sources, on_progress=on_progress, **decoding)
    seconds = time.perf_counter() - start
    state = PartialState()
    details = {
        "model": str(model_path),
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
        hypotheses, streams, target_lang, folder, name, metrics, lowercase_tokenized, tokenize, details
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


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is either absent or complete, also after a crash: temporary name, fsync, rename."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; results are for others to read, as the umask allows
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
