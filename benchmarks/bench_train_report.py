"""The page beside bench_train.json."""

from dataclasses import dataclass
from typing import Any

REPORT = """\
# Training speed

{date}, {processor}, {cpus} cores, {allocator} allocator, torch {torch}; commit {commit}. Repeat:

    make bench-train

{models}

- Tokens are those of both sides with their end tokens, without padding; "padded" counts the pads too.
- MFU: the floating-point operations of all matrix products of the update (forward and backward, attention in full), per
  second, as a share of what this machine did, in the same run and precision and on as many threads, in the three
  products of the vocabulary layer. Once for real tokens, once with padding counted as work.
- Every cell is the median over the rounds, (least to most). A ratio is the median of the rounds' ratios: in each round
  all sides had the same batches.
- The sides have the same dropout, label smoothing 0.1, Adam (0.9, 0.98). Ours is training/loop.py as `train` runs it,
  with its log and the norm of its gradient; marian is transformers' MarianMTModel with Trainer's label smoother,
  autocast and fused AdamW; torch_transformer is torch.nn.Transformer with torch's loss and fused Adam. joeynmt,
  opennmt_py, eole and sockeye train through their own trainer, model, loss and Adam. OpenNMT-py and Sockeye autocast on
  GPUs alone and JoeyNMT in float16 alone: they are given torch's autocast to bfloat16 here.
- Ours, marian, torch_transformer and joeynmt began with the same weights, and their losses agreed before the clock
  started. OpenNMT-py and eole are pre-norm; all have the same sizes.
- An update is of at most {budgets} padded tokens a side, so that
  Adam weighs more than in the paper's 25,000.
- Not measured: GPUs, reading data (batches lie ready for all sides but ours, which makes its own).
"""

MODEL = """\
## {name}: {layers}+{layers} layers, d_model {d_model}, d_ff {d_ff}, {heads} heads, vocabulary {vocabulary:,}, \
dropout {dropout}, {threads} thread(s)

{text}; {rounds} rounds of {updates_a_round} update(s), {tokens:,} tokens in all, {padding:.1%} padding on top.

GFLOP/s of this machine's products: {limits}.

| side | tokens/s | padded | MFU | with padding | ours float32 is | ours bfloat16 is |
|---|---|---|---|---|---|---|
{rows}

{goals}{missing}\
"""


@dataclass(frozen=True)
class Goal:
    """A ratio or share that is aimed at: of our side, over the fastest of the peers that `peers` names."""

    said: str
    ours: str
    peers: tuple[str, ...]
    least: float


TOOLKITS = ("joeynmt", "opennmt_py", "eole", "sockeye")
GOALS = {
    "base": (
        Goal("Marian, sdpa, float32", "ours bfloat16", ("marian sdpa float32",), 2.4),
        Goal("Marian, eager, bfloat16", "ours bfloat16", ("marian eager bfloat16",), 1.4),
        Goal("the fastest toolkit at its best precision", "ours bfloat16", TOOLKITS, 1.6),
    ),
    "multi30k-tiny": (Goal("Marian at its best setting", "ours bfloat16", ("marian",), 2.5),),
}
FLOAT32_GOAL = 1.2
MFU_GOAL = 0.55


def report(result: dict[str, Any]) -> str:
    """The whole page."""
    models = result["results"]
    torch = {facts["versions"]["torch"] for model in models.values() for facts in model["workers"].values()}
    return REPORT.format(
        **result | result["hardware"],
        torch=" and ".join(sorted(torch)),
        commit=(result["code"]["commit"] or "unknown")[:7] + (" and changes" if result["code"].get("changed") else ""),
        models="\n".join(_model(name, model) for name, model in models.items()),
        budgets=" and ".join(f"{model['budget']:,} ({name})" for name, model in models.items()),
    )


def _model(name: str, model: dict[str, Any]) -> str:
    rates = [
        f"{layer.replace('_', '-')} layer {model['gflops']['float32'][layer]['all']:.0f} in float32 and "
        f"{model['gflops']['bfloat16'][layer]['all']:.0f} in bfloat16"
        for layer in model["gflops"]["float32"]
    ]
    missing = "".join(f"\nNot measured: {side}: {reason}\n" for side, reason in model["absent"].items())
    return MODEL.format(
        **model | model["model"],
        name=name,
        tokens=sum(model["tokens_a_round"]),
        limits="; ".join(rates),
        rows="\n".join(_row(side, model) for side in model["sides"]),
        goals="".join(f"- {line}\n" for line in goal_lines(name, model)),
        missing=missing,
    )


def _row(side: str, model: dict[str, Any]) -> str:
    found = model["sides"][side]
    cells = [
        side,
        f"{_spread(found['tokens_per_second'], ',.0f')}",
        f"{found['padded_tokens_per_second']['median']:,.0f}",
        f"{found['mfu']['median']:.0%}",
        f"{found['mfu_with_padding']['median']:.0%}",
    ]
    for ours in ("ours float32", "ours bfloat16"):
        times = model["ratios"].get(ours, {}).get(side)
        cells.append(f"{_spread(times, '.2f')} x" if times else "")
    return "| " + " | ".join(cells) + " |"


def _spread(values: dict[str, float], form: str) -> str:
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def goal_lines(name: str, model: dict[str, Any]) -> list[str]:
    """What was aimed at, and how far it was reached."""
    lines = []
    for goal in GOALS.get(name, ()):
        if line := _ratio_line(model, goal):
            lines.append(line)
    slowest = [
        Goal(f"{peer} (float32 against float32)", "ours float32", (peer,), FLOAT32_GOAL)
        for peer in model["ratios"].get("ours float32", {})
        if peer.endswith("float32")
    ]
    lines += [line for goal in slowest if name == "base" and (line := _ratio_line(model, goal))]
    if name == "base" and (ours := model["sides"].get("ours bfloat16")):
        lines.append(_line("MFU in bfloat16", ours["mfu"]["median"], MFU_GOAL, ".0%"))
    return lines


def _ratio_line(model: dict[str, Any], goal: Goal) -> str | None:
    """Against the peer whose ratio is the least; None where none of them ran."""
    found = model["ratios"].get(goal.ours, {})
    ratios = {peer: times["median"] for peer, times in found.items() if peer.startswith(goal.peers)}
    if not ratios:
        return None
    fastest = min(ratios, key=lambda peer: ratios[peer])
    said = goal.said if goal.said.startswith(fastest) or len(ratios) == 1 else f"{goal.said} ({fastest})"
    line = _line(f"{goal.ours} against {said}", ratios[fastest], goal.least, ".2f")
    return f"{line}; at an MFU of 100% it would be {ratios[fastest] / model['sides'][goal.ours]['mfu']['median']:.2f}"


def _line(what: str, value: float, least: float, form: str) -> str:
    verdict = "reached" if value >= least else "missed"
    return f"{what}: {value:{form}}, aimed at {least:{form}}: {verdict}"
