"""What the ladder says about cost, in sentences: waiting, time, operations and the slopes of scaling.

Functions of a study's rows and a language as in why_transformer_notes.py, and by the same rules.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from why_transformer_chinese import chinese

from vanilla_transformer.training.ladder import complexity as complexity_study
from vanilla_transformer.training.ladder import scaling as scaling_study
from vanilla_transformer.training.ladder.exhibits import Table, shown

Rows = Sequence[Mapping[str, Any]]

TRANSFORMER = "transformer"
_MIB = 2**20


def parallelism(rows: Rows, language: str) -> str:
    """How the chains grow with length, and at which lengths the Transformer is the quicker one on each device."""
    said = []
    for what, en, zh in (("training", "one update", "一次更新"), ("decoding", "greedy decoding", "贪心解码")):
        counts: dict[str, dict[int, int]] = {}
        for row in rows:
            if row.get("counted") == what:
                counts.setdefault(row["system"], {})[row["n"]] = row["products"]
        if counts:
            short, long = (end(n for of in counts.values() for n in of) for end in (min, max))
            grow = [name for name, of in counts.items() if of[long] > of[short]]
            flat = [name for name in counts if name not in grow]
            said.append(_chains(en if language == "en" else zh, (short, long), grow, flat, counts, language))
    for device in dict.fromkeys(row["device"] for row in rows if "timed" in row):
        said += [_times(rows, device, what, language) for what in ("training", "decoding")]
    if not any(row.get("device", "CPU") != "CPU" for row in rows):
        said.append(
            "- No GPU was measured, so these tables do not show what a short chain is worth on one."
            if language == "en"
            else "- 这里没有测 GPU，所以链短在 GPU 上值多少，这些表回答不了。"
        )
    return "\n".join(line for line in said if line)


def _chains(
    what: str,
    ends: tuple[int, int],
    grow: Sequence[str],
    flat: Sequence[str],
    counts: Mapping[str, Mapping[int, int]],
    language: str,
) -> str:
    short, long = ends
    if language == "en":
        parts = [f"{name} from {counts[name][short]:,} to {counts[name][long]:,}" for name in grow]
        grown = f"the chain grows: {', '.join(parts)}" if parts else "no chain grows"
        still = "; it stays: " + ", ".join(f"{name} {counts[name][long]:,}" for name in flat) if flat else ""
        return f"- From n = {short} to n = {long}, in {what}, {grown}{still}."
    parts = [f"{name} 从 {counts[name][short]:,} 到 {counts[name][long]:,}" for name in grow]
    grown = f"变长的链：{'、'.join(parts)}" if parts else "没有变长的链"
    still = "；不变的链：" + "、".join(f"{name} {counts[name][long]:,}" for name in flat) if flat else ""
    return f"- {what}，从 n = {short} 到 n = {long}，{grown}{still}。"


def _times(rows: Rows, device: str, what: str, language: str) -> str:
    """The Transformer against the quickest recurrent system with attention, length by length."""
    seconds: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.get("timed") == what and row["device"] == device:
            seconds.setdefault(row["n"], {})[row["system"]] = row["seconds"]
    compared = []
    for n, of in sorted(seconds.items()):
        others = {name: value for name, value in of.items() if name.endswith("-attention")}
        if others and TRANSFORMER in of:
            best = min(others, key=others.__getitem__)
            compared.append((n, of[TRANSFORMER] < others[best], shown(of[TRANSFORMER]), best, shown(others[best])))
    if not compared:
        return ""
    ahead, behind = ([one for one in compared if one[1] is quicker] for quicker in (True, False))
    if language == "en":
        work = "an update" if what == "training" else "greedy decoding"
        texts = [
            f"{verb} at "
            + ", ".join(f"n = {n} ({mine} s beside {other} s of {best})" for n, _, mine, best, other in some)
            for verb, some in (("quicker", ahead), ("not quicker", behind))
            if some
        ]
        return (
            f"- {work[0].upper()}{work[1:]} on {device}: beside the quickest recurrent system with attention, the "
            f"Transformer is {'; '.join(texts)}."
        )
    work = "一次更新" if what == "training" else "贪心解码"
    texts = [
        f"{verb}：" + "、".join(f"n = {n}（{mine} 秒，{best} {other} 秒）" for n, _, mine, best, other in some)
        for verb, some in (("更快", ahead), ("没有更快", behind))
        if some
    ]
    return f"- {work}（{device}），Transformer 和最快的带注意力循环模型相比，{'；'.join(texts)}。"


def complexity(rows: Rows, language: str) -> str:
    """Where attention begins to need more operations, and what memory the longest sentence takes."""
    crossings = _table(complexity_study.tables(rows), "The length n from which")
    # A crossing between two lengths is exact, since the ratio is a line; this much is left for rounding.
    found = [(line[0], line[1]) for line in crossings.rows if line[1] is not None]
    as_said = all(math.isclose(n, d, rel_tol=0.02) for d, n in found)
    said = []
    if found and language == "en":
        where = ", ".join(f"n = {shown(n)} for d = {d}" for d, n in found)
        law = (
            "That is n = d, as the formulas say." if as_said else "That is not n = d: the formulas leave something out."
        )
        said.append(f"The attention products alone need more operations than an Elman network from {where}. {law}")
        said.append(_whole(crossings, language))
    elif found:
        where = "、".join(f"d = {d} 时 n = {shown(n)}" for d, n in found)
        law = "正是公式所说的 n = d。" if as_said else "并不是 n = d，可见公式略去了一些东西。"
        said.append(f"只算注意力的乘积，运算量超过普通循环层的长度：{where}。{law}")
        said.append(_whole(crossings, language))
    else:
        said.append(
            "Among the lengths measured the attention products alone and an Elman network do not cross."
            if language == "en"
            else "在测过的长度里，注意力的乘积与普通循环层的运算量没有交叉。"
        )
    n, d = (max(row[name] for row in rows) for name in ("n", "d"))
    peak = {row["layer"]: shown(row["peak_bytes"] / _MIB) for row in rows if (row["n"], row["d"]) == (n, d)}
    name = {"en": str, "zh": _layer_zh}[language]
    listed = [f"{name(layer)} {value}" for layer, value in peak.items()]
    said.append(
        f"Memory at n = {n} and d = {d}, in MiB: {'; '.join(listed)}."
        if language == "en"
        else f"n = {n}、d = {d} 时的内存（MiB）：{'、'.join(listed)}。"
    )
    return (" " if language == "en" else "").join(said)


def _layer_zh(layer: str) -> str:
    return layer if layer in complexity_study.CELLS else chinese(layer)


def _whole(crossings: Table, language: str) -> str:
    """Whole layers, projections and gates included, beside the two cells that have gates."""
    said = []
    for column, cell, with_article in ((2, "gru", "a GRU"), (3, "lstm", "an LSTM")):
        found = [(line[0], shown(line[column])) for line in crossings.rows if line[column] is not None]
        if language == "en":
            where = ", ".join(f"n = {n} for d = {d}" for d, n in found)
            said.append(f"{with_article} from {where}" if found else f"{with_article} at no length measured")
        else:
            where = "、".join(f"d = {d} 时 n = {n}" for d, n in found)
            said.append(f"{cell}，{where}" if found else f"{cell}，测过的长度里没有")
    if language == "en":
        return f"The whole layer, its projections included, needs more than {', and more than '.join(said)}."
    return f"整层（含投影）运算量超过带门的循环层的长度：{'；'.join(said)}。"


def scaling(rows: Rows, language: str) -> str:
    """Whose loss falls faster with parameters and with data, beyond what the fits leave open."""
    laws = _table(scaling_study.tables(rows), "Fitted power laws")
    said = []
    for x in dict.fromkeys(line[1] for line in laws.rows):
        fits = {line[0]: (line[3], line[4]) for line in laws.rows if line[1] == x}
        named = {"parameters": "参数量", "training pairs": "数据量"}[x] if language == "zh" else x
        listed = [
            f"{name} {shown(b)}" + ("" if error is None else f" ±{shown(error)}") for name, (b, error) in fits.items()
        ]
        others = [name for name in fits if name != TRANSFORMER]
        verdicts = [_steeper(fits[TRANSFORMER], fits[name], name, language) for name in others if TRANSFORMER in fits]
        rising = [name for name, (b, _) in fits.items() if b >= 0]
        if language == "en":
            text = f"- Against {named}, exponent b and its standard error: {', '.join(listed)}. {' '.join(verdicts)}"
            text += f" The loss does not fall at all with {', '.join(rising)}." if rising else ""
        else:
            text = f"- 对{named}的指数 b 和标准误：{'、'.join(listed)}。{''.join(verdicts)}"
            text += f"损失根本不降的：{'、'.join(rising)}。" if rising else ""
        said.append(text.rstrip())
    return "\n".join(said)


def _steeper(mine: tuple[float, float | None], other: tuple[float, float | None], name: str, language: str) -> str:
    """Whether the slopes differ by more than twice the standard error of their difference."""
    (b, error), (other_b, other_error) = mine, other
    if error is None or other_error is None:
        return "Two points leave no uncertainty to compare by." if language == "en" else "只有两个点，没有误差可比。"
    if abs(b - other_b) <= 2 * math.hypot(error, other_error):
        return (
            f"The slopes of the Transformer and {name} do not differ by more than their uncertainty."
            if language == "en"
            else f"Transformer 和 {name} 的斜率之差没有超出误差。"
        )
    steeper, flatter = ("Transformer", name) if b < other_b else (name, "Transformer")
    if language == "en":
        return f"The loss of {'the ' * (steeper == 'Transformer')}{steeper} falls faster than that of {flatter}."
    return f"{steeper} 的损失比 {flatter} 降得更快。"


def _table(tables: Sequence[Table], title: str) -> Table:
    return next(table for table in tables if table.title.startswith(title))
