"""Asks engines which tokens a body becomes.

For models whose tokenizer is not configured, or whose own tokens were not the engine's; and to
compare these. `/render` is asked where an engine serves it, which few do: it takes any body as it
is. `/tokenize` is asked otherwise.

Source: vLLM 0.32 entrypoints/serve/tokenize/protocol.py, entrypoints/scale_out/factories.py (403
where `/render` is off).
"""

import io
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec
import numpy as np
from leadsman.units import TokenIds
from leadsman_extproc.asking import Question

log = logging.getLogger(__name__)

_NOT_SERVED: Final = frozenset({403, 404, 405, 501})


class _Tokens(msgspec.Struct):
    tokens: list[int] | None = None
    token_ids: list[int] | None = None


_DECODE: Final = msgspec.json.Decoder(_Tokens | list[_Tokens]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTokenizer:
    """ready: says at which `ip:port` a model's ready workers are."""

    http: aiohttp.ClientSession
    ready: Callable[[str], Collection[str]]
    _without_render: set[str] = field(default_factory=set)

    async def __call__(self, model: str, question: Question) -> TokenIds | None:
        """Return the ids by an engine of the model; None where none would say."""
        endpoint = next(iter(self.ready(model)), None)
        return None if endpoint is None else await self.ask(endpoint, question)

    def endpoints(self, model: str) -> Collection[str]:
        """Say where the model's ready engines are."""
        return self.ready(model)

    async def ask(self, endpoint: str, question: Question) -> TokenIds | None:
        """Return the ids, special tokens included; None where this engine does not say."""
        for path, body in self._ways(endpoint, question):
            try:
                status, said = await self._post(f"http://{endpoint}{path}", body)
            except (aiohttp.ClientError, TimeoutError) as error:
                self._unanswered(endpoint, path, str(error) or repr(error))
                return None
            if path.endswith("/render") and status in _NOT_SERVED:
                self._without_render.add(endpoint)
                continue
            if status == 200 and (ids := _ids(said)) is not None:
                return ids
            self._unanswered(endpoint, path, f"status {status}")
            return None
        return None

    def _ways(self, endpoint: str, question: Question) -> Iterator[tuple[str, bytes]]:
        if question.path is not None and endpoint not in self._without_render:
            yield question.path + "/render", question.sent
        if question.tokenize is not None:
            yield "/tokenize", question.tokenize

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        async with self.http.post(url, data=io.BytesIO(body), headers=headers) as response:
            return response.status, await response.read()

    def _unanswered(self, endpoint: str, path: str, why: str) -> None:
        fields = {"endpoint": endpoint, "path": path, "error": why}
        log.info("engine did not tokenize", extra=fields)


def _ids(said: bytes) -> TokenIds | None:
    """Read the ids of one prompt from either answer; /render gives a completion's in a list."""
    try:
        answer = _DECODE(said)
        (only,) = answer if isinstance(answer, list) else [answer]
        ids = only.tokens if only.token_ids is None else only.token_ids
        return None if ids is None else np.array(ids, dtype=np.uint32)
    except (ValueError, OverflowError):
        return None
