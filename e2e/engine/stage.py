"""Everything up: the engine, Leadsman as `leadsman serve`, Envoy; and a client of theirs.

What the picker's journal says of each request is what is graded. The client is this process.
"""

import asyncio
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from leadsman.units import Seconds
from leadsman_bench.demo_results import Outcome, read_outcomes
from leadsman_bench.envoy import running_envoy
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_bench.player import Planned, Play, Played
from leadsman_bench.processes import Children, answers, children, free_ports, leadsman

from engine.relay import Relay
from engine.vllm import NAME, STARTS_WITHIN, Engine, Ports, model_folder, template

SETTLES: Final[Seconds] = 3.0
"""Until the collector has the settings, and the journal its last lines."""
LINGER: Final[Seconds] = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What runs. relays: of the engine's event socket and of its replay socket."""

    engine: Engine
    relays: tuple[Relay, Relay]
    url: str
    journal: Path

    def play(
        self,
        planned: Sequence[Planned],
        around: Sequence[Planned] = (),
        settle: Seconds = SETTLES,
    ) -> list[Played]:
        """Play requests through Envoy, those of `around` straight at the engine; wait for all."""
        played = asyncio.run(self._play(planned, around))
        time.sleep(settle)
        return played

    async def _play(self, planned: Sequence[Planned], around: Sequence[Planned]) -> list[Played]:
        began = asyncio.get_running_loop().time()
        through = Play(self.url, planned, linger=LINGER)
        beside = Play(self.engine.url, around, linger=LINGER)
        played, _ = await asyncio.gather(through.run(began), beside.run(began))
        return played

    def outcomes(self) -> list[Outcome]:
        """Read what the picker's journal says of all requests so far."""
        return read_outcomes(self.journal / "outcomes.jsonl")

    def reset_prefix_cache(self) -> None:
        """Let the engine forget all that it has cached."""
        request = urllib.request.Request(f"{self.engine.url}/reset_prefix_cache", method="POST")
        with urllib.request.urlopen(request, timeout=10):
            pass


@contextmanager
def stage(python: Path | None, slots: int, out: Path) -> Iterator[Stage]:
    """Put everything up with an engine of so many slots, and take it down again."""
    http, events, replay = free_ports(3)
    ports = Ports(http=http, events=events, replay=replay)
    with children(out / "logs") as held:
        engine = Engine(
            python=python, folder=model_folder(out / "model"), ports=ports, slots=slots, held=held
        )
        engine.start()
        relays = Relay(ports.events), Relay(ports.replay)
        for relay in relays:
            relay.start()
        journal = out / f"journal-{slots}"
        picker = _start_picker(held, engine, relays, journal)
        engine.wait()
        config = EnvoyConfig(engines=[f"127.0.0.1:{ports.http}"], picker=f"127.0.0.1:{picker}")
        with running_envoy(config) as envoy:
            held.until("leadsman", lambda: answers(f"{envoy.url}/v1/models"), within=STARTS_WITHIN)
            time.sleep(SETTLES)
            yield Stage(engine=engine, relays=relays, url=envoy.url, journal=journal)
        for relay in relays:
            relay.stop()


def _start_picker(
    held: Children, engine: Engine, relays: tuple[Relay, Relay], journal: Path
) -> int:
    for stale in ("decisions.jsonl", "outcomes.jsonl"):
        (journal / stale).unlink(missing_ok=True)
    told = {
        "endpoints": [
            {
                "url": engine.url,
                "kv_events": f"tcp://127.0.0.1:{relays[0].port}",
                "kv_replay": f"tcp://127.0.0.1:{relays[1].port}",
            }
        ],
        "models": [
            {"name": NAME, "path": str(engine.folder), "chat_template": str(template())},
        ],
        "picker": {"listen": "127.0.0.1:0", "journal": str(journal.absolute()), "drain": 2.0},
    }
    settings = engine.folder / "fleet.yaml"
    settings.write_text(yaml.safe_dump(told, sort_keys=False))
    held.start("leadsman", leadsman("serve", "--config", str(settings)))
    return int(held.told("leadsman", STARTS_WITHIN)["port"])
