"""A started process, watched: its wall time, its processor time, its peak memory, and when it said what."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.1  # seconds between two looks at its memory


@dataclass(frozen=True)
class Started:
    """What a process did; memory is in bytes.

    anonymous: peak of the memory that is its own. resident: peak of that and of the pages of mapped files, which the
        kernel takes back as it needs them; a process that reads a mapped corpus once through reaches the corpus's size.
    said: seconds since the start, and the line, of everything on its stderr.
    """

    seconds: float
    cpu_seconds: float
    anonymous: int
    resident: int
    stdout: str
    said: list[tuple[float, str]]


def watched(command: list[str], environment: dict[str, str] | None = None) -> Started:
    """Run a command to its end. Ends the program with the last lines of its stderr where it fails."""
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | (environment or {}),
    ) as process:
        said: list[tuple[float, str]] = []
        stdout: list[str] = []
        peaks = [0, 0]

        def listen() -> None:
            said.extend((time.perf_counter() - began, line.rstrip("\n")) for line in process.stderr)

        def watch() -> None:
            while process.returncode is None:
                peaks[:] = map(max, zip(peaks, memory(process.pid), strict=True))
                time.sleep(INTERVAL)

        threads = [
            threading.Thread(target=listen),
            threading.Thread(target=lambda: stdout.append(process.stdout.read())),
        ]
        watcher = threading.Thread(target=watch)
        for thread in (*threads, watcher):
            thread.start()
        for thread in threads:
            thread.join()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        watcher.join()
    if process.returncode:
        sys.exit("\n".join([f"{' '.join(command)}: exit code {process.returncode}", *(line for _, line in said[-20:])]))
    return Started(seconds, usage.ru_utime + usage.ru_stime, *peaks, "".join(stdout), said)


def status(pid: int | str) -> dict[str, int]:
    """The sizes of /proc/PID/status by their names, in bytes; a process that has ended has none."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines) if value.endswith(" kB")}
    return {name: 1024 * int(value.split()[0]) for name, value in sizes.items()}


def memory(pid: int) -> tuple[int, int]:
    """Anonymous and resident memory of a process and of its children at this moment, in bytes; 0 where it has ended."""
    try:
        sizes = status(pid)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return 0, 0
    own = [sizes.get(name, 0) for name in ("RssAnon", "VmRSS")]
    anonymous, resident = (sum(parts) for parts in zip(own, *(memory(int(child)) for child in children), strict=True))
    return anonymous, resident
