"""The page and the figure beside bench_scale.json."""

from pathlib import Path
from typing import Any

MEBIBYTE = 2**20

REPORT = """\
# Cost and scale

{date}, {processor}, {cpus} cores, torch {torch}; commit {commit}. Repeat:

    make bench-scale

## Measured here: length

One training step (forward and backward, float32, {threads} threads) of a model of base's width with 2+2 layers, as many
tokens on the source as on the target side. Memory is the kernel's count of what the step added at its peak.

![time and memory against length]({figure})

{lengths}

Between the two longest, memory grows with the length to the power of: {growth}. One is
linear, two quadratic.

## Measured here: batch and vocabulary

{batches}

{vocabularies}

## Measured here: processes and accumulation

Training as a user starts it, {layers}+{layers} layers of width 256, vocabulary {vocabulary:,}, float32, one thread a
process, {rounds} round(s) in turns. Two processes: {tokens_a_process:,} tokens a side for each in an update, {updates}
updates. Accumulation: {accumulated_tokens:,} tokens a side in an update, {accumulated_updates} updates.

| | tokens a second, by round | share, median (least to most) |
|---|---|---|
{runs}

{goals}

## On paper: the paper's runs on H200

Arithmetic, not measured: no GPU was used. The FLOPs are those of `train --dry-run`; the peak is {peak:.0f} TFLOP/s
in bfloat16, of which {shares} are assumed to be reached.
Gradients are summed in float32 over a ring, over NVLink ({nvlink:.0f} GB/s) in a machine of eight and over the network
({network:.0f} GB/s a GPU) beyond. The update stays the paper's 25,000 + 25,000 tokens, so on many GPUs each has little
to do. The lower figure of hours has all communication hidden behind the backward pass, the higher one none. Left out:
{left_out}. A GPU hour is priced at {dollars:.2f}
dollars, an example.

| model | GPUs | tokens a GPU and update | ms to compute | ms to sum gradients | hours | GPU hours | dollars |
|---|---|---|---|---|---|---|---|
{estimates}

Sources: {sources}.
"""


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def _lengths(result: dict[str, Any]) -> str:
    names = list(result["growth_with_length"])
    by_length = {name: {point["length"]: point for point in result["steps"][name]} for name in names}
    rows = []
    for length in sorted({length for points in by_length.values() for length in points}):
        cells = [f"{length:,}"]
        for name in names:
            point = by_length[name].get(length)
            cells.append(f"{point['seconds']:.2f} s, {point['peak_bytes'] / MEBIBYTE:,.0f} MiB" if point else "")
        rows.append(cells)
    return _table(["tokens a side", *names], rows)


def _steps(points: list[dict[str, Any]], key: str, said: str) -> str:
    rows = [
        [
            f"{point[key]:,}",
            f"{point['seconds']:.3f}",
            f"{point['tokens_per_second']:,.0f}",
            f"{point['peak_bytes'] / MEBIBYTE:,.0f}",
        ]
        for point in points
    ]
    return _table([said, "seconds", "tokens a second", "peak memory, MiB"], rows)


def _run(said: str, run: dict[str, Any]) -> str:
    speeds = [f"{one:,.0f} : {other:,.0f}" for one, other in zip(*run["tokens_per_second"].values(), strict=True)]
    share = run["share"]
    return f"| {said} | {', '.join(speeds)} | {share['median']:.1%} ({share['min']:.1%} to {share['max']:.1%}) |"


def goals(result: dict[str, Any]) -> list[str]:
    """What was aimed at, and whether it was reached."""
    memory = {name: result["growth_with_length"][name]["memory"] for name in result["growth_with_length"]}
    linear = {name: power for name, power in memory.items() if "sdpa" in name}
    efficiency, overhead = result["two_processes"]["share"]["median"], 1 - result["accumulation"]["share"]["median"]
    found = [
        (all(power <= 1.15 for power in linear.values()), "memory linear in the length with sdpa (power up to 1.15)"),
        (efficiency >= 0.85, f"two processes reach {efficiency:.1%} of two single ones, aimed at 85%"),
        (overhead <= 0.02, f"accumulation over {result['accumulation']['steps']} costs {overhead:.1%}, aimed below 2%"),
    ]
    return [f"- {'met' if met else 'MISSED'}: {said}" for met, said in found]


def report(result: dict[str, Any], figure: str) -> str:
    """The whole page; `figure` is the picture's file beside it."""
    paper = result["on_paper"]
    sheet, assumed = paper["from_data_sheets"], paper["assumed"]
    steps = result["accumulation"]["steps"]
    estimates = []
    for each in paper["estimates"]:
        hours, dollars = (each["hours_hidden"], each["hours_exposed"]), each["dollars"]
        estimates.append(
            f"| {each['model']} | {each['gpus']} | {each['tokens_a_gpu']:,} | {1e3 * each['compute_seconds']:.2f} | "
            f"{1e3 * each['communication_seconds']:.2f} | {hours[0]:.2f} to {hours[1]:.2f} | "
            f"{each['gpu_hours'][0]:.1f} to {each['gpu_hours'][1]:.1f} | {dollars[0]:,.0f} to {dollars[1]:,.0f} |"
        )
    return REPORT.format(
        date=result["date"],
        processor=result["hardware"]["processor"],
        cpus=result["hardware"]["cpus"],
        torch=result["libraries"]["torch"],
        commit=(result["code"]["commit"] or "none")[:12] + (" (changed)" if result["code"].get("changed") else ""),
        threads=result["threads"],
        figure=figure,
        lengths=_lengths(result),
        growth="; ".join(f"{name} {power['memory']:.2f}" for name, power in result["growth_with_length"].items()),
        batches=_steps(result["steps"]["batch"], "rows", "sentences of 32 tokens"),
        vocabularies=_steps(result["steps"]["vocabulary"], "vocabulary", "vocabulary, 1,024 tokens a side"),
        **result["runs"],
        runs="\n".join(
            [
                _run("two processes : two single ones", result["two_processes"]),
                _run(f"an update in {steps} parts : in one", result["accumulation"]),
            ]
        ),
        goals="\n".join(goals(result)),
        peak=sheet["peak_flops"] / 1e12,
        shares=" and ".join(f"{share:.0%} ({name})" for name, share in assumed["share_of_peak"].items()),
        nvlink=sheet["nvlink"] / 1e9,
        network=sheet["network"] / 1e9,
        left_out=assumed["left_out"],
        dollars=assumed["dollars_a_gpu_hour"],
        estimates="\n".join(estimates),
        sources="; ".join(f"{name}: {source}" for name, source in sheet["sources"].items()),
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """Seconds and memory against the length, both axes logarithmic, with a line of slope one."""
    from matplotlib.figure import Figure  # in the extra "plots"

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, key, unit, said in zip(
        figure.subplots(1, 2),
        ("seconds", "peak_bytes"),
        (1, MEBIBYTE),
        ("seconds of a training step", "peak memory of the step, MiB"),
        strict=True,
    ):
        for name in result["growth_with_length"]:
            points = result["steps"][name]
            lengths = [point["length"] for point in points]
            axes.loglog(lengths, [point[key] / unit for point in points], marker="o", markersize=3, label=name)
        first = result["steps"][next(iter(result["growth_with_length"]))]
        straight = [first[-1][key] / unit * point["length"] / first[-1]["length"] for point in first]
        axes.loglog([point["length"] for point in first], straight, "--", color="grey", label="linear")
        axes.set_xlabel("tokens a side")
        axes.set_title(said)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
