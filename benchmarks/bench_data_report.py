"""The page beside bench_data.json."""

from dataclasses import dataclass
from typing import Any

REPORT = """\
# Preparing and batching a corpus of WMT's size

{date}, {processor}, {cpus} cores, pyarrow {pyarrow}, tokenizers {tokenizers}; commit {commit}. Repeat:

    make bench-data

`vanilla-transformer prepare` on text made of real English-German sentences, in a process of its own: read, clean, store
as Arrow, learn a BPE vocabulary of {vocabulary:,}, tokenise, store. Every dropped pair was sown, and the counters agree
with what was sown.

| | {tenth[pairs]:,} pairs | {whole[pairs]:,} pairs |
|---|---|---|
{rows}

Memory of its own is what a process cannot give back. It holds, whatever the corpus, a batch of lines, the learner's
words (of at most a million pairs, evenly spread) and a record batch; and 8-byte digests of the pairs seen, 12 to 24
bytes each, the only part that grows. Resident memory also counts mapped pages of the corpus that the kernel takes
back when it needs them.

## Batches

Updates of {batches[tokens_an_update]:,} padded tokens a side of the {batches[pairs]:,} pairs; padding is
{batches[padding]:.1%}.

| | |
|---|---|
{batch_rows}

A plan is the shuffled order of one epoch, and all that shuffling holds; the corpus stays on the disk.

## Start

| | CPU seconds | seconds |
|---|---|---|
{start_rows}

## Goals

{goals}
"""

MEBIBYTE = 2**20
STAGES = {"read_clean_store": "read, clean, store", "vocabulary": "vocabulary", "tokenise": "tokenise, store"}


@dataclass(frozen=True)
class Goal:
    """What was aimed at: a value that may be no less, or no more, than its bound."""

    said: str
    value: float
    bound: float
    at_least: bool
    form: str

    def __str__(self) -> str:
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        limit = "no less than" if self.at_least else "no more than"
        return (
            f"- {'met' if met else 'MISSED'}: {self.said} {self.value:{self.form}}, "
            f"aimed at {limit} {self.bound:{self.form}}"
        )


def goals(result: dict[str, Any]) -> list[Goal]:
    """What was aimed at; how memory grows can only be told from corpora much larger than what is held of any."""
    tenth, whole, batches = result["prepare"]["tenth"], result["prepare"]["whole"], result["batches"]
    growth = (whole["peak_anonymous_bytes"] - tenth["peak_anonymous_bytes"]) / (whole["pairs"] - tenth["pairs"])
    one_worker = batches["tokens_per_second"]["1 workers"]["median"]
    small = whole["pairs"] < 1_000_000
    return [
        Goal(f"minutes to prepare {whole['pairs']:,} pairs:", whole["seconds"] / 60, 25, False, ".1f"),
        # 24 bytes of digests a pair while the table doubles, and what the learner's words grow by up to a million
        # pairs; the text itself has some 290.
        *([] if small else [Goal("bytes of memory that a further pair costs:", growth, 64, False, ".1f")]),
        Goal("tokens a second from one worker:", one_worker, 3e6, True, ",.0f"),
        Goal("seconds to the first batch:", batches["seconds_to_first_batch"], 5, False, ".2f"),
        Goal(
            "CPU seconds of --help:",
            result["import_time"]["vanilla-transformer --help"]["cpu_seconds"],
            0.5,
            False,
            ".2f",
        ),
    ]


def report(result: dict[str, Any]) -> str:
    """The whole page."""
    tenth, whole, batches = result["prepare"]["tenth"], result["prepare"]["whole"], result["batches"]

    def row(said: str, value: Any) -> str:
        return f"| {said} | {value(tenth)} | {value(whole)} |"

    rows = [
        row("text, MiB", lambda side: f"{side['text_bytes'] / MEBIBYTE:,.0f}"),
        row("lines read", lambda side: f"{side['lines_read']:,}"),
        row("tokens, both sides", lambda side: f"{sum(side['tokens'].values()):,}"),
        row("seconds", lambda side: f"{side['seconds']:,.1f}"),
        *(
            row(f"- {said}", lambda side, name=name: f"{side['seconds_of_stages'][name]:,.1f}")
            for name, said in STAGES.items()
        ),
        row("CPU seconds", lambda side: f"{side['cpu_seconds']:,.1f}"),
        row("sentences a second, both sides", lambda side: f"{side['sentences_per_second']:,.0f}"),
        row("peak memory of its own, MiB", lambda side: f"{side['peak_anonymous_bytes'] / MEBIBYTE:,.0f}"),
        row("peak resident memory, MiB", lambda side: f"{side['peak_resident_bytes'] / MEBIBYTE:,.0f}"),
    ]
    batch_rows = [
        f"| seconds to open the corpus | {batches['seconds_to_open']:.2f} |",
        f"| seconds to plan an epoch | {batches['seconds_to_plan_an_epoch']:.2f} |",
        f"| seconds to the first batch, all included | {batches['seconds_to_first_batch']:.2f} |",
        f"| corpus on disk, MiB | {batches['corpus_bytes'] / MEBIBYTE:,.0f} |",
        f"| memory of its own after the imports, MiB | {batches['anonymous_bytes_of_imports'] / MEBIBYTE:,.0f} |",
        f"| the same with a plan, MiB | {batches['anonymous_bytes_with_a_plan'] / MEBIBYTE:,.0f} |",
        *(
            f"| tokens a second, {name}, median (least to most) | "
            f"{rate['median']:,.0f} ({rate['min']:,.0f} to {rate['max']:,.0f}) |"
            for name, rate in batches["tokens_per_second"].items()
        ),
    ]
    start_rows = [
        f"| `{name}` | {taken['cpu_seconds']:.2f} | {taken['seconds']:.2f} |"
        for name, taken in result["import_time"].items()
    ]
    return REPORT.format(
        date=result["date"],
        processor=result["hardware"]["processor"],
        cpus=result["hardware"]["cpus"],
        pyarrow=result["libraries"]["pyarrow"],
        tokenizers=result["libraries"]["tokenizers"],
        commit=(result["code"]["commit"] or "none")[:12] + (" (changed)" if result["code"].get("changed") else ""),
        vocabulary=result["vocabulary"],
        tenth=tenth,
        whole=whole,
        batches=batches,
        rows="\n".join(rows),
        batch_rows="\n".join(batch_rows),
        start_rows="\n".join(start_rows),
        goals="\n".join(map(str, goals(result))),
    )
