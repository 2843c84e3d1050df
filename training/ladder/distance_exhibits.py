"""Tables and plots of trainings at several distances: accuracy with its intervals, and how the trainings went."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from vanilla_transformer.training.ladder.exhibits import Plot, Series, Table
from vanilla_transformer.training.ladder.short_training import counted

Row = Mapping[str, Any]

INTERVALS = (
    "Mean over the seeds, and in brackets the lowest and the highest bound of their 95% Wilson intervals, so that it "
    "covers both what a seed's test questions and what the seed itself leaves open."
)


def accuracy_table(rows: Sequence[Row], column: str, title: str, unit: str, note: str) -> Table:
    """A line a system; `column` of a training's row holds a list of what `accuracy_by_distance` says."""
    by_system = counted(rows)
    distances = _distances(by_system, column)
    lines = [
        [system, len(trainings), *(_with_interval(trainings, column, k) for k in distances)]
        for system, trainings in by_system.items()
    ]
    return Table(title, ["system", "seeds", *(f"{unit} = {k}" for k in distances)], lines, f"{note} {INTERVALS}")


def accuracy_plot(
    rows: Sequence[Row],
    column: str,
    name: str,
    title: str,
    x_label: str,
    chance: float,
    places: Mapping[int, float] | None = None,
) -> Plot:
    """A line a system with the range of its seeds, and a dashed one at chance; `places` are the distances' x."""
    by_system = counted(rows)
    series = []
    for system, trainings in by_system.items():
        distances = _distances({system: trainings}, column)
        shares = [[_at(row, column, k)["right"] / _at(row, column, k)["asked"] for row in trainings] for k in distances]
        means = [fmean(of_seeds) for of_seeds in shares]
        spread = [max(abs(one - y) for one in of_seeds) for of_seeds, y in zip(shares, means, strict=True)]
        series.append(Series(system, [places[k] if places else k for k in distances], means, spread))
    if distances := _distances(by_system, column):
        ends = [places[k] if places else k for k in (distances[0], distances[-1])]
        series.append(Series("chance", ends, [chance, chance], is_reference=True))
    note = "Mean over the seeds; the bars reach as far as the seed that is furthest from it."
    return Plot(name, title, x_label, "share of right answers", series, log_x=True, note=note)


def trainings_table(rows: Sequence[Row]) -> Table:
    """What each training took, the ones that chose the rate too."""
    used = {id(row) for trainings in counted(rows).values() for row in trainings}
    lines = [
        [
            row["system"], row["parameters"], row["d_model"], row["seed"], f"{row['learning_rate']:g}",
            "yes" if id(row) in used else "no", row["updates"], "yes" if row["learnt"] else "no", row["seconds"],
            row["validation_loss"],
        ]
        for row in rows
        if "learning_rate" in row
    ]  # fmt: skip
    columns = ["system", "parameters", "d_model", "seed", "highest rate", "counts", "updates", "learnt", "seconds"]
    note = (
        "Every rate was tried on the first seed; the one with the lower validation loss counts and is that of the other"
        " seeds. A training ended before the most updates only where every distance was learnt, that is, where the mean"
        " loss of the last batches of each was below 0.02."
    )
    return Table("The trainings", [*columns, "validation loss"], lines, note)


def _distances(by_system: Mapping[str, Sequence[Row]], column: str) -> list[int]:
    return sorted({one["distance"] for rows in by_system.values() for row in rows for one in row[column]})


def _at(row: Row, column: str, distance: int) -> Row:
    return next(one for one in row[column] if one["distance"] == distance)


def _with_interval(trainings: Sequence[Row], column: str, distance: int) -> str:
    found = [_at(row, column, distance) for row in trainings]
    share = fmean(one["right"] / one["asked"] for one in found)
    return f"{share:.3f} ({min(one['low'] for one in found):.3f}–{max(one['high'] for one in found):.3f})"
