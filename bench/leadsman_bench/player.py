"""Plays requests at a gateway as streaming chats, open loop: each at its time, come what may.

The client keeps what it saw itself, so that a run has a witness beside the picker: status, first
content chunk, end, usage. A connection that breaks is an outcome too. Times are seconds of the
running event loop's clock, from the moment the play began.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from leadsman.units import Seconds, Tokens

from leadsman_bench.prompts import chat_messages
from leadsman_bench.traces import TraceRequest

REASON_HEADER = "x-llm-d-request-dropped-reason"
TTFT_HEADER = "x-slo-ttft-ms"
LINGER: Seconds = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request of a play: when, what, and the queue wait that it accepts (None: any).

    ttft: the objective that it names. headers: of its own, beside those of all.
    """

    id: str
    at: Seconds
    row: TraceRequest
    model: str
    max_queue_wait: Seconds | None = None
    max_tokens: Tokens | None = None
    ttft: Seconds | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Encode the request as a streaming chat."""
        wanted: dict[str, Any] = {
            "model": self.model,
            "messages": chat_messages(self.row),
            "stream": True,
            "stream_options": {"include_usage": True},
            # The simulated engine's own stop: no picker looks at it.
            "vllm_xargs": {"output_tokens": self.row.output_tokens},
        }
        if self.max_tokens is not None:
            wanted["max_tokens"] = self.max_tokens
        if self.max_queue_wait is not None:
            wanted["max_queue_wait_s"] = self.max_queue_wait
        return msgspec.json.encode(wanted)


@dataclass(slots=True, kw_only=True)
class Played:
    """What the client saw of one request; `status` is None where no answer came.

    chunks_at: when each event with content came, from the first one that has any.
    """

    planned: Planned
    sent_at: Seconds
    status: int | None = None
    first_at: Seconds | None = None
    chunks_at: list[Seconds] = field(default_factory=list)
    ended_at: Seconds | None = None
    cached_tokens: Tokens | None = None
    reason: str | None = None
    retry_after: Seconds | None = None
    should_retry: bool = True
    broke: bool = False

    @property
    def ttft(self) -> Seconds | None:
        """Seconds from sending to the first content."""
        return None if self.first_at is None else self.first_at - self.sent_at


@dataclass(slots=True)
class Tally:
    """How a play stands."""

    planned: int
    sent: int = 0
    served: int = 0
    refused: int = 0
    failed: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class Play:
    """One play at a gateway; `tally` may be read while it runs.

    linger: how long the last answers may take after the last request was sent.
    """

    url: str
    plan: Sequence[Planned]
    linger: Seconds = LINGER
    played: list[Played] = field(default_factory=list)
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(planned=len(self.plan))

    async def run(self, began: Seconds | None = None) -> list[Played]:
        """Send every request at its time and wait for the answers, at most `linger`.

        began: the clock's reading at time 0 of the plan; now where it is None.
        """
        clock = asyncio.get_running_loop().time
        start = clock() if began is None else began
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            sending: set[asyncio.Task[None]] = set()
            for planned in sorted(self.plan, key=lambda one: one.at):
                body = planned.body()
                await asyncio.sleep(start + planned.at - clock())
                one = Played(planned=planned, sent_at=clock() - start)
                self.played.append(one)
                sent = send(self.url, session, one, lambda: clock() - start, self.tally, body)
                task = asyncio.create_task(sent)
                sending.add(task)
                task.add_done_callback(sending.discard)
            await _finish(sending, self.linger)
        return self.played


async def send(  # noqa: PLR0913, PLR0917  # where, by what, what, and who is told
    url: str,
    session: aiohttp.ClientSession,
    one: Played,
    now: Callable[[], Seconds],
    tally: Tally,
    body: bytes | None = None,
) -> None:
    """Send one request and read its answer to the end; `one` and `tally` tell how it went."""
    tally.sent += 1
    tally.in_flight += 1
    headers = {"content-type": "application/json", "x-request-id": one.planned.id}
    if one.planned.ttft is not None:
        headers[TTFT_HEADER] = f"{one.planned.ttft * 1e3:.0f}"
    try:
        async with session.post(
            f"{url}/v1/chat/completions",
            data=one.planned.body() if body is None else body,
            headers=headers | dict(one.planned.headers),
        ) as answer:
            one.status = answer.status
            if answer.status == 200:
                await _read(answer, one, now)
            else:
                _keep_refusal(answer, one)
                await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        one.broke = True
    finally:
        one.ended_at = now()
        tally.in_flight -= 1
        if one.status == 200 and not one.broke:
            tally.served += 1
        elif one.status in {429, 503, 529}:
            tally.refused += 1
        else:
            tally.failed += 1


async def _finish(sending: set[asyncio.Task[None]], linger: Seconds) -> None:
    """Wait for the answers; what takes longer is cut."""
    if not sending:
        return
    _, late = await asyncio.wait(sending, timeout=linger)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


async def _read(answer: aiohttp.ClientResponse, one: Played, now: Callable[[], Seconds]) -> None:
    """Read a stream to its end; only the first content and the usage are looked into."""
    async for line in _data_lines(answer):
        if b'"content"' in line:
            if one.first_at is None:
                chunk = msgspec.json.decode(line)
                if not any(choice["delta"].get("content") for choice in chunk["choices"]):
                    continue
                one.first_at = now()
            one.chunks_at.append(now())
        elif b'"usage":{' in line or b'"usage": {' in line:
            usage = msgspec.json.decode(line)["usage"]
            details = usage.get("prompt_tokens_details") or {}
            one.cached_tokens = details.get("cached_tokens")


async def _data_lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for line in answer.content:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield line[6:]


def _keep_refusal(answer: aiohttp.ClientResponse, one: Played) -> None:
    one.reason = answer.headers.get(REASON_HEADER, f"status {answer.status}")
    one.retry_after = _retry_after(answer)
    one.should_retry = answer.headers.get("x-should-retry", "true") == "true"


def _retry_after(answer: aiohttp.ClientResponse) -> Seconds | None:
    """Read the milliseconds where they are told, as both SDK families do, else the seconds."""
    milliseconds = answer.headers.get("retry-after-ms")
    if milliseconds is not None:
        return float(milliseconds) / 1e3
    seconds = answer.headers.get("retry-after")
    return None if seconds is None else float(seconds)
