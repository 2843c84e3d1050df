"""What the ladder's numbers show, in sentences: functions of a study's rows and a language, "en" or "zh".

Each weighs the rows at hand, so a sentence changes with the result that it speaks of; none expects an outcome. Numbers
are written as the tables have them, and a ratio or a difference that no table shows is not written.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import why_transformer_costs
from why_transformer_chinese import chinese

from vanilla_transformer.training.ladder import ablations as ablation_study
from vanilla_transformer.training.ladder.exhibits import shown
from vanilla_transformer.training.ladder.short_training import counted

Rows = Sequence[Mapping[str, Any]]

# A cell with one vector, and the same cell with attention.
PAIRS = (("lstm", "lstm-attention"), ("gru", "gru-attention"))
FIXED = ("rnn", "lstm", "gru")
TRANSFORMER = "transformer"


def length(rows: Rows, language: str) -> str:
    """Whether the fixed vector loses more in the longest sentences than in the shortest."""
    lines = []
    for corpus, systems in _by_corpus(rows).items():
        for fixed, attending in PAIRS:
            if fixed not in systems or attending not in systems:
                continue
            short, long = ([_bucket(systems[name], at) for name in (fixed, attending)] for at in (0, -1))
            growth = (long[1][0] - long[0][0]) - (short[1][0] - short[0][0])
            # The half-widths of four scores, as if independent; the sentences are the same, so the truth is narrower.
            noise = math.hypot(*(half for _, half in (*short, *long)))
            grew = "wider" if growth > noise else "narrower" if growth < -noise else "same"
            en = {
                "wider": "The lead of attention is larger in long sentences, by more than the intervals: here the one "
                "vector is too little.",
                "narrower": "The lead of attention is smaller in long sentences: this pair does not show the "
                "bottleneck that the usual story tells of.",
                "same": "The lead of attention does not change by more than the intervals: this pair neither shows the "
                "bottleneck nor rules it out.",
            }
            zh = {
                "wider": "句子越长，注意力领先越多，变化超出置信区间：一个向量在这里确实不够用。",
                "narrower": "句子越长，注意力的领先反而越小：这一对没有表现出通常所说的瓶颈。",
                "same": "注意力的领先没有超出置信区间的变化：这一对既没有显出瓶颈，也不能排除瓶颈。",
            }
            a, b, c, d = (f"{score:.1f}" for score, _ in (*short, *long))
            lines.append(
                f"- {corpus}: {attending} has {b} BLEU in the shortest sentences and {d} in the longest, {fixed} {a} "
                f"and {c}. {en[grew]}"
                if language == "en"
                else f"- {corpus}：最短一组里 {attending} 的 BLEU 是 {b}，{fixed} 是 {a}；"
                f"最长一组里分别是 {d} 和 {c}。{zh[grew]}"
            )
    return "\n".join(lines)


def translation(rows: Rows, language: str) -> str:
    """Which system translates best, whether the intervals tell the first two apart, and what is quickest to train."""
    lines = []
    for corpus, systems in _by_corpus(rows).items():
        scores = {name: [run["scores"]["bleu"] for run in runs] for name, runs in systems.items()}
        mean = {name: fmean(one["score"] for one in of) for name, of in scores.items()}
        speed = {name: fmean(run["tokens_per_second"] for run in runs) for name, runs in systems.items()}
        order = sorted(mean, key=mean.__getitem__, reverse=True)
        clear = len(order) > 1 and _ends(scores[order[0]])[0] > _ends(scores[order[1]])[1]
        quick = max(speed, key=speed.__getitem__)
        ranked = ", ".join(f"{name} {mean[name]:.2f}" for name in order)
        attending = [mean[name] for _, name in PAIRS if name in mean]
        fixed = [mean[name] for name in FIXED if name in mean]
        if language == "en":
            said = "The intervals of the first two lie apart" if clear else "The intervals of the first two overlap"
            lines.append(
                f"- {corpus}, BLEU from best to worst: {ranked}. {said}. {_with_attention(attending, fixed, language)}"
                f"Training is quickest with {quick}, "
                f"{round(speed[quick]):,} tokens/s on this machine{_of_transformer(speed, quick, language)}."
            )
        else:
            said = "前两名的置信区间不重叠" if clear else "前两名的置信区间有重叠，分不出高下"
            lines.append(
                f"- {corpus}，BLEU 从高到低：{ranked.replace(', ', '、')}。{said}。"
                f"{_with_attention(attending, fixed, language)}"
                f"在这台机器上训练最快的是 {quick}，每秒 {round(speed[quick]):,} 个词元"
                f"{_of_transformer(speed, quick, language)}。"
            )
    return "\n".join(lines)


def _of_transformer(speed: Mapping[str, float], quick: str, language: str) -> str:
    if quick == TRANSFORMER or TRANSFORMER not in speed:
        return ""
    tokens = f"{round(speed[TRANSFORMER]):,}"
    return f"; the Transformer does {tokens}" if language == "en" else f"；Transformer 是 {tokens} 个"


def ablations(rows: Rows, language: str) -> str:
    """What is lost without each part, and whether the model without a decoder mask cheated."""
    bleu = {name: _mean(rows, name, "bleu") for name in ablation_study.ABLATIONS}
    loss = {name: _mean(rows, name, "validation_loss") for name in ablation_study.ABLATIONS}
    runs = {name: [row for row in rows if row["ablation"] == name] for name in bleu}
    named: Callable[[str], str] = chinese if language == "zh" else str
    whole = bleu["whole"]
    if whole is None:
        return "The whole model did not finish." if language == "en" else "完整模型没有训练完。"
    parts = [name for name in bleu if name != "whole" and runs[name]]
    # A part whose every run is below every run of the whole model.
    least = min(row["bleu"] for row in runs["whole"] if row["bleu"] is not None)
    worse = [name for name in parts if bleu[name] is not None and _most(runs[name]) < least]
    worse.sort(key=lambda name: bleu[name])
    others = [name for name in parts if name not in worse and bleu[name] is not None]
    diverged = [name for name in parts if any(row["diverged"] for row in runs[name])]
    one = max(len(runs[name]) for name in ("whole", *parts)) == 1
    comma = ", " if language == "en" else "、"
    lost, kept = (comma.join(f"{named(name)} {shown(bleu[name])}" for name in some) for some in (worse, others))
    gone = comma.join(map(named, diverged))
    if language == "en":
        said = [f"The whole model has {shown(whole)} BLEU."]
        said += [f"Below it, the greatest loss first: {lost}."] if worse else ["No part's absence lowers it."]
        said += [f"Not below it: {kept}."] if others else []
        said += [f"Training ended in numbers that are not finite: {gone}."] if diverged else []
        said += ["One run of each: small differences may be chance."] if one else []
    else:
        said = [f"完整模型的 BLEU 是 {shown(whole)}。"]
        said += [f"低于它的，从损失最大的开始：{lost}。"] if worse else ["去掉任何一个部分都没有变低。"]
        said += [f"没有低于它的：{kept}。"] if others else []
        said += [f"训练发散的：{gone}。"] if diverged else []
        said += ["每种只训练了一次，小的差别可能是偶然。"] if one else []
    mask = "without decoder mask"
    if loss[mask] is not None and loss["whole"] is not None and bleu[mask] is not None:
        figures = [shown(value) for value in (loss[mask], loss["whole"], bleu[mask], whole)]
        said.append(_cheated(figures, loss[mask] < loss["whole"], bleu[mask] < whole, language))
    return (" " if language == "en" else "").join(said)


def _cheated(figures: Sequence[str], low_loss: bool, low_bleu: bool, language: str) -> str:
    mask_loss, whole_loss, mask_bleu, whole_bleu = figures
    if language == "en":
        facts = (
            f"Without the decoder mask the loss is {mask_loss} beside {whole_loss}, and BLEU {mask_bleu} beside "
            f"{whole_bleu}: "
        )
        if low_loss and low_bleu:
            return facts + "it reads the answer in training, and fails when there is none to read."
        return facts + "it was expected to cheat in training and to fail in decoding, and these runs do not show both."
    facts = (
        f"去掉解码器掩码，损失是 {mask_loss}（完整模型 {whole_loss}），BLEU 是 {mask_bleu}（完整模型 {whole_bleu}）："
    )
    if low_loss and low_bleu:
        return facts + "训练时它偷看答案，解码时没有答案可看，就不会了。"
    return facts + "本该是训练时作弊、解码时失败，但这几次训练没有同时显出这两点。"


def recall(rows: Rows, language: str) -> str:
    """How far back each system still answers, against its neighbours on the ladder."""
    trainings = counted(rows)
    chance = shown(next(row["chance"] for kept in trainings.values() for row in kept))
    far = {name: _furthest(kept, "accuracy") for name, kept in trainings.items()}
    pairs = [(a, b) for a, b in PAIRS if a in far and b in far]
    if language == "en":
        said = [
            f"Guessing is right in {chance} of the questions. More than half of the answers are right {_far_en(far)}."
        ]
        said += [f"{b} reaches {_compared_en(far[b], far[a])} {a}." for a, b in pairs]
    else:
        said = [f"瞎猜的准确率是 {chance}。答对一半以上的最远距离：{_far_zh(far)}。"]
        said += [_compared_zh(b, a, far) for a, b in pairs]
    if TRANSFORMER in far and (others := [far[name] for name in far if name != TRANSFORMER]):
        best = max(_order(value) for value in others)
        mine = _order(far[TRANSFORMER])
        if language == "en":
            verdict = (
                "The Transformer reaches further than every recurrent system, as the short way says that it should."
                if mine > best
                else "No recurrent system reaches further than the Transformer, and at least one as far."
                if mine == best
                else "A recurrent system reaches further than the Transformer: a short way alone does not make a task "
                "learnt in so few updates."
            )
        else:
            verdict = (
                "Transformer 比所有循环模型都看得远，与“路短”的道理相符。"
                if mine > best
                else "没有哪个循环模型比 Transformer 看得更远，但至少有一个同样远。"
                if mine == best
                else "有循环模型看得比 Transformer 远：光是路短，并不保证在这么少的更新里学会。"
            )
        said.append(verdict)
    return (" " if language == "en" else "").join(said)


def pronoun(rows: Rows, language: str) -> str:
    """How far each system still knows who is meant, by language, and whether what it knows are only known pairs."""
    trainings, lines = counted(rows), []
    for spoken, names in (("en", ("English", "英文")), ("zh", ("Chinese", "中文"))):
        far = {name: _furthest(kept, spoken, bound="low") for name, kept in trainings.items()}
        known = {name: _furthest(kept, f"{spoken}_known", bound="low") for name, kept in trainings.items()}
        by_heart = [name for name in far if far[name] is None and known[name] is not None]
        if language == "en":
            line = f"- {names[0]}, new pairs of people: surely better than chance {_far_en(far)}."
            line += f" Only for pairs known from training: {', '.join(by_heart)}." if by_heart else ""
        else:
            line = f"- {names[1]}，没见过的两人组合：确实好于瞎猜的最远距离（句数）：{_far_zh(far)}。"
            line += f"只在训练中见过的组合上好于瞎猜的：{'、'.join(by_heart)}。" if by_heart else ""
        lines.append(line)
    return "\n".join(lines)


def _by_corpus(rows: Rows) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        found.setdefault(row["corpus"], {}).setdefault(row["system"], []).append(row)
    return found


def _bucket(runs: Rows, at: int) -> tuple[float, float]:
    """BLEU in a bucket of source lengths and half its interval, means over the seeds."""
    buckets = [run["buckets"][at] for run in runs]
    intervals = [bucket["confidence_interval"] for bucket in buckets if "confidence_interval" in bucket]
    half = fmean((one["high"] - one["low"]) / 2 for one in intervals) if intervals else math.inf
    return fmean(bucket["score"] for bucket in buckets), half


def _ends(scores: Rows) -> tuple[float, float]:
    """The lower and the upper end of a score's interval, means over the seeds; without one, no end."""
    intervals = [score["confidence_interval"] for score in scores if "confidence_interval" in score]
    if not intervals:
        return -math.inf, math.inf
    return fmean(one["low"] for one in intervals), fmean(one["high"] for one in intervals)


def _with_attention(attending: Sequence[float], fixed: Sequence[float], language: str) -> str:
    if not attending or not fixed:
        return ""
    above = min(attending) > max(fixed)
    if language == "en":
        return f"{'Every' if above else 'Not every'} recurrent system with attention is above every one without. "
    return f"带注意力的循环模型{'都' if above else '并非都'}高于不带注意力的。"


def _mean(rows: Rows, name: str, value: str) -> float | None:
    found = [row[value] for row in rows if row["ablation"] == name and row[value] is not None]
    return fmean(found) if found else None


def _most(runs: Rows) -> float:
    return max(row["bleu"] for row in runs if row["bleu"] is not None)


def _furthest(trainings: Rows, column: str, bound: str | None = None) -> int | None:
    """The largest distance up to which more than half is right, on the mean or, with `bound`, surely; None: none is."""
    reached = None
    for k in sorted(one["distance"] for one in trainings[0][column]):
        at = [one for row in trainings for one in row[column] if one["distance"] == k]
        share = min(one[bound] for one in at) if bound else fmean(one["right"] / one["asked"] for one in at)
        if share <= 0.5:
            break
        reached = k
    return reached


def _order(distance: int | None) -> int:
    return -1 if distance is None else distance


def _far_en(far: Mapping[str, int | None]) -> str:
    some = ", ".join(f"to k = {k} ({name})" for name, k in far.items() if k is not None)
    none = ", ".join(name for name, k in far.items() if k is None)
    return "; ".join(([f"up {some}"] if some else []) + ([f"at no k: {none}"] if none else []))


def _far_zh(far: Mapping[str, int | None]) -> str:
    some = "、".join(f"{name} 到 k = {k}" for name, k in far.items() if k is not None)
    none = "、".join(name for name, k in far.items() if k is None)
    return "；".join(([some] if some else []) + ([f"任何 k 都达不到的：{none}"] if none else []))


def _compared_en(mine: int | None, other: int | None) -> str:
    if _order(mine) == _order(other):
        return "just as far as"
    return "further than" if _order(mine) > _order(other) else "less far than"


def _compared_zh(one: str, other: str, far: Mapping[str, int | None]) -> str:
    mine, others = _order(far[one]), _order(far[other])
    if mine == others:
        return f"{one} 和 {other} 看得一样远。"
    return f"{one} 比 {other} 看得{'更远' if mine > others else '更近'}。"


# By the key that the templates use: the study whose rows it speaks of, and what writes it.
NOTES: dict[str, tuple[str, Callable[[Rows, str], str]]] = {
    "length": ("translation", length),
    "translation": ("translation", translation),
    "ablations": ("ablations", ablations),
    "recall": ("recall", recall),
    "pronoun": ("pronoun", pronoun),
    "parallelism": ("parallelism", why_transformer_costs.parallelism),
    "complexity": ("complexity", why_transformer_costs.complexity),
    "scaling": ("scaling", why_transformer_costs.scaling),
}
