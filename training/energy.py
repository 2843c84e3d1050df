"""What the processors say they used: the counters of RAPL, where the machine has them and lets us read them.

They count whole processors, other programs included, and neither memory, disks nor GPUs: an estimate from below of what
a run cost that has its machine to itself.
"""

import threading
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
# The counters start again at 0 after some 260 kJ, which a large processor uses in a quarter of an hour.
SECONDS_BETWEEN_READINGS = 30.0


class EnergyMeter:
    """Counts from `start` to `stop`; without a counter to read, as in most containers, it counts nothing."""

    def __init__(self, powercap: Path = POWERCAP):
        # Zones below a package (intel-rapl:0:1) are part of it, and psys, the whole board, holds the packages.
        zones = [zone for zone in sorted(powercap.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        self._counters = [zone for zone in zones if _text(zone / "name").startswith("package")]
        self._readings: dict[Path, int] = {}
        self._joules = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="energy", daemon=True)

    def start(self) -> None:
        self._readings = {zone: int(text) for zone in self._counters if (text := _text(zone / "energy_uj")).isdigit()}
        if self._readings.keys() != {*self._counters}:  # half of a machine is no estimate
            self._readings = {}
        if self._readings:
            self._thread.start()

    def stop(self) -> float | None:
        """Joules since `start`; None where they could not be counted."""
        if not self._readings:
            return None
        self._ended.set()
        self._thread.join()
        self._read()
        return self._joules

    def _read_on(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_READINGS):
            self._read()

    def _read(self) -> None:
        for zone, before in self._readings.items():
            now = int(_text(zone / "energy_uj"))
            used = now - before if now >= before else now + int(_text(zone / "max_energy_range_uj")) - before
            self._readings[zone] = now
            self._joules += used * 1e-6


def _text(path: Path) -> str:
    """What the kernel says there; empty where that is for others, since 2020 the administrator alone."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
