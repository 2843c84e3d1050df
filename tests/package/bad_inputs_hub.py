"""Cases of docs/bad_inputs.md: the Hub. One process asks a Hub on this machine that refuses in all the Hub's ways."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

from bad_inputs_bench import RECIPE, TOKEN

# id: data set, whether there is a token
ASKED: dict[str, tuple[str, bool]] = {
    "hub-missing": ("user/private", False),
    "hub-private": ("user/private", True),
    "hub-gated": ("user/gated", False),
    "hub-no-access": ("user/gated", True),
    "hub-wrong-token": ("user/pairs", True),
    "hub-forbidden": ("user/closed", True),
    "hub-offline": ("user/pairs", False),
    "hub-unreachable": ("user/pairs", False),
    "hub-model": ("user/private", False),
}

# Runs command lines one after the other, since loading the libraries takes longer than all of them.
PROGRAM = """
import io, json, os, sys
from pathlib import Path
import datasets
from huggingface_hub import constants
from vanilla_transformer.cli import main

asked, answers, (out, err) = json.load(sys.stdin), {}, (sys.stdout, sys.stderr)
for id, (arguments, token) in asked.items():
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = id == "hub-offline"
    if id == "hub-unreachable":
        constants.ENDPOINT = datasets.config.HF_ENDPOINT = "http://127.0.0.1:9"
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    try:
        main(arguments)
    except SystemExit as ended:
        code = ended.code
    said = [stream.buffer.getvalue().decode() for stream in (sys.stdout, sys.stderr)]
    answers[id] = {"code": code, "out": said[0], "err": said[1]}
sys.stdout, sys.stderr = out, err
print(json.dumps(answers))
"""


class _Refusing(BaseHTTPRequestHandler):
    """Answers as huggingface.co does, whatever is asked of a repo."""

    def do_GET(self) -> None:
        token = self.headers.get("Authorization")
        if "user/gated" in self.path:
            self._refuse(403 if token else 401, "Access to this repo is restricted", "GatedRepo")
        elif "user/pairs" in self.path:
            self._refuse(401, "Invalid credentials in Authorization header")
        elif "user/closed" in self.path:
            self._refuse(403, "Forbidden: the token has no right to read")
        else:
            self._refuse(404 if token else 401, "Repository not found", "RepoNotFound")

    do_HEAD = do_GET

    def _refuse(self, status: int, message: str, code: str | None = None) -> None:
        body = b"" if self.command == "HEAD" else json.dumps({"error": message}).encode()
        self.send_response(status)
        self.send_header("X-Error-Message", message)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _refusing_hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def answers(folder: Path) -> dict[str, SimpleNamespace]:
    """Exit code and both streams for each id of ASKED, and `endpoint`, the address that was asked."""
    (folder / "my.yaml").write_text(RECIPE, encoding="utf-8")
    asked = {}
    for id, (repo, has_token) in ASKED.items():
        arguments = ["prepare", "my.yaml", "--output-dir", "run", "--set", f"data.corpus={repo}"]
        asked[id] = (["translate", repo] if id == "hub-model" else arguments, TOKEN if has_token else None)
    asked["hub-unreachable"] = asked.pop("hub-unreachable")  # last: it moves the Hub away
    with _refusing_hub() as endpoint:
        environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "home")}
        command = [sys.executable, "-c", PROGRAM]
        options = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run(command, input=json.dumps(asked), **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout)
    return {id: SimpleNamespace(**given[id], endpoint=endpoint) for id in ASKED}
