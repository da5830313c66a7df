"""A small server that streams like OpenAI's API with known delays; the model's name says how it behaves.

Run as a process: `python sse_server.py`; it prints its port. GET /requests tells what it was asked.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FIRST_S, GAP_S = 0.05, 0.01
ASKED: list[dict[str, Any]] = []
CONNECTIONS: list[object] = []
NUMBERS = itertools.count(1)  # of what is asked; each is one request's, whatever the others do


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        CONNECTIONS.append(self.client_address)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "steady", "object": "model"}]})
        else:
            self._json(200, {"asked": ASKED, "connections": len(CONNECTIONS)})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ASKED.append({"path": self.path, "body": body, "authorization": self.headers.get("Authorization")})
        model, number = body["model"], next(NUMBERS)
        if model == "strict" and "ignore_eos" in body:
            self._json(400, {"error": {"message": "unknown field ignore_eos", "type": "bad", "code": None}})
        elif model == "busy" and number % 3 == 0:
            self._json(429, {"error": {"message": "the queue is full"}})
        elif model == "plain":
            self._json(200, {"choices": [{"text": "all at once"}]})
        elif model == "html":
            self._raw(502, "text/html", b"<h1>Bad  gateway</h1>")
        else:
            self._stream(model, body)

    def _stream(self, model: str, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        is_closing = model == "closing"
        self.send_header(
            "Connection" if is_closing else "Transfer-Encoding", "close" if is_closing else "chunked"
        )
        self.end_headers()
        self.is_chunked = not is_closing
        num_tokens = body["max_tokens"] - (model == "short")
        if self.path.endswith("/chat/completions"):
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(FIRST_S)
        for i in range(num_tokens):
            if i:
                time.sleep(GAP_S)
            if i == 2 and model in ("dies", "error", "cut"):
                self._break(model)
                return
            self._token(model, i)
        self._event({"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]})
        if model != "no-usage":
            usage: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": num_tokens}
            usage["prompt_tokens_details"] = {"cached_tokens": 3}
            self._event({"choices": [], "usage": usage})
        self._write(b": a comment\n\ndata: [DONE]\n\n")
        if self.is_chunked:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

    def _token(self, model: str, number: int) -> None:
        if model == "silent":  # tokens without visible text
            return
        text = f" w{number}"
        field = {"delta": {"content": text}} if self.path.endswith("/chat/completions") else {"text": text}
        self._event({"id": "c", "choices": [{"index": 0, **field, "finish_reason": None}], "usage": None})

    def _break(self, model: str) -> None:
        if model == "dies":
            self.wfile.flush()
            os._exit(9)
        if model == "error":
            self._event({"error": {"message": "engine 7 was killed", "code": "engine_lost"}})
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, value: dict[str, Any]) -> None:
        self._write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _write(self, data: bytes) -> None:
        """Event by event, in two chunks and three writes, as proxies may cut it."""
        if not self.is_chunked:
            self.wfile.write(data)
            return
        half = len(data) // 2
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:half], data[half:]))
        for part in (framed[:1], framed[1:7], framed[7:]):
            self.wfile.write(part)

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self._raw(status, "application/json", json.dumps(value).encode())

    def _raw(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Many at once."""

    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
