"""The page beside bench_decode.json."""

from dataclasses import dataclass
from typing import Any

REPORT = """\
# Decoding speed

Base, vocabulary 37,000, {source_tokens} source tokens, exactly {new_tokens} new ones; {rounds} rounds, {threads} \
thread(s).
{date}, {processor}, {cpus} cores, {allocator} allocator, {libraries}; commit {commit}. Repeat:

    make bench-decode

GFLOP/s of this machine's product of the vocabulary layer: {limits}.

{settings}
{goals}{absent}
- Every cell is the median over the rounds, (least to most). A ratio is the median of the rounds' ratios: in each round
  all sides had the same sentences. Tokens are those of the output.
- The share is that of the floating-point operations of all matrix products, per second, in what this machine did in
  the vocabulary layer with many rows, in the same run and precision; for int8 none is measured.
- Ours is `generate` of a loaded model, which packs the weights anew in each call; "packed once" is as `translate` and
  `evaluate` call it. int8 is what --int8 loads.
- The weights are random and the same on all sides, by `convert --to`. "same" is the share of outputs identical to ours
  in float32; random weights leave many near ties, which rounding decides.
- marian is transformers' MarianMTModel with its own generate; ctranslate2 has the batch as a whole, as the others.
- Not measured: JoeyNMT, GPUs, sentences that end at different lengths (finished ones leave our batches).
"""

SETTING = """\
## Batch {name}

| side | tokens/s | share | same | ours float32 is | ours bfloat16 is | ours int8 is |
|---|---|---|---|---|---|---|
{rows}
"""
OURS = ("ours float32", "ours bfloat16", "ours int8")


@dataclass(frozen=True)
class Goal:
    """A ratio that is aimed at."""

    setting: str
    ours: str
    peer: str
    least: float


GOALS = (
    Goal("32 beam 4", "ours float32", "marian float32", 1.5),
    Goal("32 beam 4", "ours bfloat16", "marian float32", 3.0),
    Goal("32 beam 4", "ours bfloat16", "ctranslate2 float32", 1.2),
    Goal("32 beam 4", "ours int8", "ctranslate2 int8", 0.8),
)


def report(result: dict[str, Any]) -> str:
    """The whole page."""
    versions = {name: number for facts in result["versions"].values() for name, number in facts.items()}
    rates = {precision: rate["vocabulary"]["forward"] for precision, rate in result["gflops"].items()}
    parts = {
        "libraries": ", ".join(f"{name} {number}" for name, number in sorted(versions.items())),
        "commit": (result["code"]["commit"] or "unknown")[:7]
        + (" and changes" if result["code"].get("changed") else ""),
        "limits": ", ".join(f"{rate:.0f} in {precision}" for precision, rate in rates.items()),
        "settings": "\n".join(
            SETTING.format(name=name, rows="\n".join(_row(side, setting) for side in setting["sides"]))
            for name, setting in result["settings"].items()
        ),
        "goals": "".join(f"- {line}\n" for line in goal_lines(result)),
        "absent": "".join(f"- Not measured: {side}: {reason}\n" for side, reason in result["absent"].items()),
    }
    return REPORT.format(**result["hardware"] | result | parts)


def _row(side: str, setting: dict[str, Any]) -> str:
    found = setting["sides"][side]
    share = found.get("share_of_limit")
    cells = [
        side,
        _spread(found["tokens_per_second"], ",.0f"),
        f"{share['median']:.0%}" if share else "",
        f"{found['identical_to_ours_float32']:.0%}",
    ]
    for ours in OURS:
        times = setting["ratios"].get(ours, {}).get(side)
        cells.append(f"{_spread(times, '.2f')} x" if times else "")
    return "| " + " | ".join(cells) + " |"


def _spread(values: dict[str, float], form: str) -> str:
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def goal_lines(result: dict[str, Any]) -> list[str]:
    """What was aimed at, and how far it was reached."""
    lines = []
    for goal in GOALS:
        found = result["settings"][goal.setting]["ratios"].get(goal.ours, {}).get(goal.peer)
        if found:
            verdict = "reached" if found["median"] >= goal.least else "missed"
            what = f"{goal.ours} against {goal.peer}, batch {goal.setting}"
            lines.append(f"{what}: {found['median']:.2f}, aimed at {goal.least:.1f}: {verdict}")
    return lines
