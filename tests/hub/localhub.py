"""A Hugging Face Hub over loopback that the true clients cannot tell from the real one, small enough to read.

It speaks what huggingface_hub 2.4, transformers 5.24 and datasets 5.2 put on the wire: repos, commits, LFS and Xet
uploads, downloads, revisions, tokens, private and gated repos. Everything lies in memory.

    with LocalHub() as hub:
        subprocess.run(command, env={**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": ALICE})

`hub.requests` is the request log; `hub.faults` are injected failures; leaving it fails if a client asked for anything
that this Hub does not know. What it cannot show: the real Hub's limits, its checks of licences and datasets, its speed.

    python tests/hub/localhub.py 8765    # for trying things by hand
"""

import re
import sys
import threading
from http.server import ThreadingHTTPServer
from types import TracebackType

from localhub_access import User
from localhub_http import Answer, Call, Fault, Handler, Request
from localhub_routes import answer
from localhub_store import Repo
from localhub_xet import XetStore

# No real token is of this form: those have 34 letters and digits after hf_.
ALICE, ALICE_READS, BOB = "hf_aliceWrites0000000000", "hf_aliceReads00000000000", "hf_bobWrites000000000000"


class LocalHub(ThreadingHTTPServer):
    """Serves while it is entered. `url` is the Hub, `content_url` the content network, which gets no user's token."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.tokens = {ALICE: User("alice", True), ALICE_READS: User("alice", False), BOB: User("bob", True)}
        self.repos: dict[tuple[str, str], Repo] = {}
        self.large_files: dict[str, bytes] = {}  # by SHA-256
        self.xet = XetStore()
        self.requests: list[Request] = []
        self.unanswered: list[str] = []
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        super().__init__(("127.0.0.1", port), Handler)
        # Clients send the user's token to hosts of the Hub's name alone.
        self.url, self.content_url = (f"http://{host}:{self.server_port}" for host in ("127.0.0.1", "localhost"))

    def __enter__(self) -> "LocalHub":
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.shutdown()
        self.server_close()
        if error is None and self.unanswered:
            raise AssertionError(f"the local Hub has no answer to: {', '.join(sorted({*self.unanswered}))}")

    def answer(self, call: Call) -> Answer:
        return answer(call)

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The first fault that is still to come and meets this request."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and re.search(fault.match, path):
                    fault.times -= 1
                    return fault
        return None

    def repo(self, name: str, kind: str = "models") -> Repo:
        return self.repos[kind, name]

    def transports(self) -> set[str]:
        """How large files went over the wire so far, by the requests that only one of the protocols makes."""
        signs = {
            "LFS upload": ("PUT", "/_lfs/"),
            "LFS download": ("GET", "/_cdn/"),
            "Xet upload": ("POST", "/v1/xorbs/"),
            "Xet download": ("GET", "/_xorb/"),
        }
        return {
            name
            for name, (method, start) in signs.items()
            if any(request.method == method and request.path.startswith(start) for request in self.requests)
        }


if __name__ == "__main__":
    with LocalHub(int(sys.argv[1]) if len(sys.argv) > 1 else 8765) as served:
        print(f"HF_ENDPOINT={served.url} HF_TOKEN={ALICE}", flush=True)
        threading.Event().wait()
