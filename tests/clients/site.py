"""Runs a command beside a server of its own, which serves SmolLM2 as "smol" and the null backend as "null".

The command finds it by TRIVET_CLIENTS_URL, _TOKEN and _HOME; _MODEL is the demo model's file, _PYTHON has
Trivet. Its exit status is that of the command.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trivet.client import Client
from trivet.demo_model import find_demo_model
from trivet.errors import TrivetError

DEADLINE_S = 120.0


def main(command: list[str]) -> int:
    """Whatever happens, nothing of the server is left."""
    with tempfile.TemporaryDirectory(prefix="tv") as home, socket.socket() as probe:  # socket paths are short
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server binds beside it, nobody else
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        environment = {**os.environ, "TRIVET_HOME": home, "TRIVET_PORT": str(port)}
        trivet = str(Path(sys.executable).with_name("trivet"))
        log = Path(home) / "serve.log"
        with log.open("wb") as out:
            server = subprocess.Popen([trivet, "serve"], env=environment, stdout=out, stderr=out)
        try:
            url = f"http://127.0.0.1:{port}"
            token = _launch(server, Path(home), url)
            given = {"TRIVET_CLIENTS_URL": url, "TRIVET_CLIENTS_TOKEN": token, "TRIVET_CLIENTS_HOME": home}
            given |= {"TRIVET_CLIENTS_MODEL": str(find_demo_model()), "TRIVET_CLIENTS_PYTHON": sys.executable}
            status = subprocess.run(command, env={**os.environ, **given}, check=False).returncode
            if status:
                print(log.read_text()[-4000:], file=sys.stderr)
            return status
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(DEADLINE_S)


def _launch(server: subprocess.Popen[bytes], home: Path, url: str) -> str:
    """Wait until both models serve. Returns the token. Raises: AssertionError naming what did not come."""
    latest_s = time.monotonic() + DEADLINE_S
    wanted = {"smol": "cpu", "null": "null"}
    is_launched = False
    while time.monotonic() < latest_s:
        assert server.poll() is None, (home / "serve.log").read_text()
        try:
            token = (home / "run" / "token").read_text().strip()
            with Client(url, token, timeout_s=DEADLINE_S) as client:
                if not is_launched and client.status().supervisor.up:
                    for name, backend in wanted.items():
                        client.deployments.create(
                            str(find_demo_model()),
                            name=name,
                            backend=backend,
                            settings={"max_model_len": "2048"},
                        )
                    is_launched = True
                states = [str(one.state) for one in client.instances.list()]
                if states.count("ready") == len(wanted):
                    return token
        except (TrivetError, OSError):
            pass  # not yet
        time.sleep(0.1)
    raise AssertionError(f"the models do not serve: {(home / 'serve.log').read_text()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
