"""Many streaming clients in one thread: `python -m trivet_bars.stream_clients PORT STREAMS TOKENS`.

Bounded: so many connections to loopback, each with one request, for `DEADLINE_S` at most. Prints one JSON
line when every stream has its first token, and one with the totals at the end.
"""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import time
from dataclasses import dataclass, field

DEADLINE_S = 50.0
CONNECT_AT_ONCE = 50  # the listener's queue is not what is measured
_TOKEN = re.compile(rb"(\d{12,}) ")  # several where the server joined them


@dataclass
class Client:
    """One connection. `is_whole`: it got its last event."""

    sock: socket.socket
    begun_s: float
    num_tokens: int = 0
    is_whole: bool = False


@dataclass
class Crowd:
    """What all clients of a run have seen."""

    num_streams: int
    delays_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_whole: int = 0
    num_broken: int = 0
    has_told: bool = False

    def take(self, client: Client, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        sent = _TOKEN.findall(data)
        if sent and not client.num_tokens:
            self.first_ms.append(now_ns / 1e6 - 1e3 * client.begun_s)
        client.num_tokens += len(sent)
        self.num_tokens += len(sent)
        self.delays_ms += [(now_ns - int(one)) / 1e6 for one in sent]
        if b"[DONE]" in data:
            client.is_whole = True
        if len(self.first_ms) == self.num_streams and not self.has_told:
            self.has_told = True
            print(json.dumps({"all_begun": self.num_tokens}), flush=True)

    def end(self, client: Client, num_tokens: int) -> None:
        is_good = client.is_whole and client.num_tokens == num_tokens
        self.num_whole += is_good
        self.num_broken += not is_good
        client.sock.close()


def run(port: int, num_streams: int, num_tokens: int) -> Crowd:
    """Ask for all streams, read until each has ended or the time is over."""
    crowd, clients, epoll = Crowd(num_streams), {}, select.epoll()
    body = json.dumps(
        {
            "model": "sim",
            "messages": [{"role": "user", "content": "Which metal is heaviest? " * 20}],
            "max_tokens": num_tokens,
            "stream": True,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    deadline_s = time.monotonic() + DEADLINE_S
    asked = 0
    while (asked < num_streams or clients) and time.monotonic() < deadline_s:
        for _ in range(min(CONNECT_AT_ONCE, num_streams - asked)):
            sock = socket.create_connection(("127.0.0.1", port), timeout=10)
            client = Client(sock, time.monotonic())
            sock.sendall(head.encode() + body)
            sock.setblocking(False)
            clients[sock.fileno()] = client
            epoll.register(sock.fileno(), select.EPOLLIN)
            asked += 1
        for fd, _ in epoll.poll(0.02):
            client = clients[fd]
            data = client.sock.recv(65536)
            crowd.take(client, data)
            if client.is_whole or not data:
                epoll.unregister(fd)
                crowd.end(clients.pop(fd), num_tokens)
    for client in clients.values():
        crowd.end(client, num_tokens)
    return crowd


def percentile(values: list[float], share: float) -> float:
    """Of a list in any order; 0 of an empty one."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else 0.0


if __name__ == "__main__":
    begun_s = time.monotonic()
    seen = run(*map(int, sys.argv[1:4]))
    summary = {
        "whole": seen.num_whole,
        "broken": seen.num_broken,
        "tokens": seen.num_tokens,
        "wall_s": round(time.monotonic() - begun_s, 2),
        "delay_ms_p50": percentile(seen.delays_ms, 0.5),
        "delay_ms_p99": percentile(seen.delays_ms, 0.99),
        "ttft_ms_p50": percentile(seen.first_ms, 0.5),
        "ttft_ms_p99": percentile(seen.first_ms, 0.99),
    }
    print(json.dumps(summary), flush=True)
