"""The sides of bench_train.py as processes that stay alive: started, asked, ended."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from peer_environments import PeerUnavailable, last_words

PEERS = Path(__file__).resolve().parent / "peers"
# A side that gives no answer for so long is ended and reported.
SECONDS = 900


class Worker:
    """A script of benchmarks/peers in a process of its own; every request is answered before the next is sent."""

    def __init__(self, name: str, python: str, script: str, threads: int, folder: Path):
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "CUDA_VISIBLE_DEVICES": "",  # a benchmark of CPUs, also where there is a GPU
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONWARNINGS": "ignore",
        }
        self.name, self._said = name, folder / f"{name}.log"
        with open(self._said, "wb") as said:
            self._process = subprocess.Popen(
                [python, str(PEERS / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                encoding="utf-8",
                env=environment,
            )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer. Raises PeerUnavailable with the side's error, or with its last words where it ended."""
        timer = threading.Timer(SECONDS, self._process.kill)
        timer.start()
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            code = self._process.wait()
            if code == -signal.SIGKILL:
                raise PeerUnavailable(f"was killed: it took more than {SECONDS} s, or the memory was short")
            raise PeerUnavailable(f"ended with {code}: {last_words(self._said.read_text(errors='replace'))}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerUnavailable(answer["error"])
        return answer

    def close(self) -> None:
        """End the process; it has nothing to save."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
