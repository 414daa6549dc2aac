"""A real Redis on this machine that can be stopped, frozen, and started again with nothing."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

PATIENCE = 30.0
needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="there is no redis-server on this machine"
)


class RedisServer:
    """One server, which keeps nothing on disk."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.01)
        raise AssertionError("redis-server does not listen")

    def stop(self):
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def away(self):
        """Let it answer nobody, and go on afterwards with all that it had."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)
