from pathlib import Path

import pytest

from vanilla_transformer.training.energy import EnergyMeter


def zone(powercap: Path, name: str, label: str, microjoules: int, most: int = 1_000_000) -> Path:
    folder = powercap / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{label}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / "energy_uj"


def test_the_packages_are_added_up_and_their_counters_start_again(tmp_path):
    first = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 0)
    inside = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    board = zone(tmp_path, "intel-rapl:2", "psys", 0)
    meter = EnergyMeter(tmp_path)
    meter.start()
    for counter in (inside, board):
        counter.write_text("700000")
    first.write_text("200000")  # from 0.9 J to 1 J, where it starts again, and on to 0.2 J
    second.write_text("500000")
    assert meter.stop() == pytest.approx(0.3 + 0.5)


def test_without_a_counter_that_may_be_read_there_is_no_figure(tmp_path):
    def measured() -> float | None:
        meter = EnergyMeter(tmp_path)
        meter.start()
        return meter.stop()

    assert measured() is None
    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    assert measured() == 0
    (tmp_path / "intel-rapl:1").mkdir()
    (tmp_path / "intel-rapl:1" / "name").write_text("package-1")  # and a counter that is not for us
    assert measured() is None
