"""What one request to the local Hub is, what answers it, and how faults come between the two."""

import io
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from localhub import LocalHub


class Refusal(Exception):
    """An error that the Hub answers on purpose, as the real one words it; `code` is its X-Error-Code."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.headers |= {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})


class UnknownRoute(Exception):
    """A request that this Hub has no answer for, so that a test using it would prove nothing."""


@dataclass
class Answer:
    status: int = 200
    body: bytes | dict[str, Any] | list[Any] = b""
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Call:
    """A request as it came: `parts` are the segments of its path, unquoted one by one, so that a/b may be a branch."""

    hub: "LocalHub"
    method: str
    path: str
    parts: list[str]
    query: dict[str, str]
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body or b"{}")


@dataclass
class Request:
    """One line of the request log. `error` is what the answer said, `fault` the injected one that met the request."""

    method: str
    path: str
    status: int | None
    error: str | None
    fault: str | None
    host: str
    authorized: bool
    agent: str

    def __str__(self) -> str:
        return f"{self.method} {self.path} -> {self.status} {self.error or ''} {self.fault or ''}".rstrip()


@dataclass
class Fault:
    """What happens, `times` times, to requests of this method whose path matches the pattern.

    action: a status answers with it; "drop" closes the connection in the middle of the request; "lose" does what was
    asked and closes the connection instead of answering; "corrupt" flips one bit in the middle of the answer's body;
    "stall" waits until the client is gone; a function changes the Call before it is answered.
    """

    method: str
    match: str
    action: int | str | Callable[[Call], None]
    times: int = 1
    # Set when a request has met this fault: a test waits for it.
    met: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return self.action.__name__ if callable(self.action) else str(self.action)


def ranged(call: Call, data: bytes, headers: dict[str, str]) -> Answer:
    """The bytes that a Range header asks for, or all."""
    wanted = re.match(r"bytes=(\d+)-(\d*)", call.headers.get("Range", ""))
    headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"} | headers
    if not wanted:
        return Answer(200, data, headers)
    first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
    if first >= len(data):
        return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
    return Answer(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 over loopback: reads a request, lets a fault or the Hub answer it, writes the log."""

    protocol_version, server_version = "HTTP/1.1", "localhub"
    server: "LocalHub"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr; the Hub keeps its own log."""

    def answer_request(self) -> None:
        path = urlsplit(self.path).path
        fault = self.server.take_fault(self.command, unquote(path))
        if fault is None:
            self._finish(self._routed(), None)
            return
        fault.met.set()
        if isinstance(fault.action, int):
            self._read_body()
            self._finish(Answer(fault.action, {"error": "injected"}), fault)
        elif fault.action == "drop":
            self.rfile.read(min(4096, int(self.headers.get("Content-Length") or 0)))
            self._hang_up(fault)
        elif fault.action == "stall":
            self._hang_up(fault, wait=True)
        elif fault.action == "lose":
            self._routed()
            self._hang_up(fault)
        elif fault.action == "corrupt":
            answer = self._routed()
            body = bytearray(answer.encoded())
            body[len(body) // 2] ^= 1
            self._finish(Answer(answer.status, bytes(body), answer.headers), fault)
        else:
            self._finish(self._routed(fault.action), fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = answer_request

    def _routed(self, change: Any = None) -> Answer:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        call = Call(self.server, self.command, url.path, parts, query, self.headers, self._read_body())
        if change is not None:
            change(call)
        try:
            return self.server.answer(call)
        except Refusal as refusal:
            return Answer(refusal.status, {"error": str(refusal)}, refusal.headers)
        except UnknownRoute:
            self.server.unanswered.append(f"{call.method} {self.path}")
            return Answer(404, {"error": "the local Hub has no such route"})
        except Exception as error:  # a request that it should know and does not understand
            self.server.unanswered.append(f"{call.method} {self.path}: {error!r}")
            return Answer(500, {"error": "the local Hub failed"})

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = io.BytesIO()
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body.write(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return body.getvalue()
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _finish(self, answer: Answer, fault: Fault | None) -> None:
        body = answer.encoded()
        self._log(answer.status, answer.headers.get("X-Error-Message"), fault)
        self.send_response(answer.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | answer.headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _hang_up(self, fault: Fault, wait: bool = False) -> None:
        self._log(None, None, fault)
        if wait:
            with suppress(OSError):
                while self.connection.recv(65536):  # until the client is gone, whatever it still sends
                    pass
        self.close_connection = True
        self.connection.close()

    def _log(self, status: int | None, error: str | None, fault: Fault | None) -> None:
        headers = self.headers
        line = Request(
            method=self.command,
            path=self.path,
            status=status,
            error=error,
            fault=str(fault) if fault else None,
            host=headers.get("Host", ""),
            authorized="Authorization" in headers,
            agent=headers.get("User-Agent", ""),
        )
        self.server.requests.append(line)
