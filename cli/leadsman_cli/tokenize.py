"""Asks an engine which tokens a body becomes, for models whose tokenizer is not configured.

vLLM's `/tokenize` takes the same bodies as the chat and the completions API and renders them as
they would. The other APIs' bodies it does not take: those prompts stay estimates.

Source: vLLM 0.33 entrypoints/serve/tokenize/protocol.py.
"""

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec
import numpy as np
from leadsman.units import TokenIds

log = logging.getLogger(__name__)

_PATHS: Final = ("/v1/chat/completions", "/v1/completions")


class _Tokens(msgspec.Struct):
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTokenizer:
    """endpoint_of: `ip:port` of a ready worker of a model; None where there is none."""

    http: aiohttp.ClientSession
    endpoint_of: Callable[[str], str | None]

    async def __call__(self, model: str, path: str, body: bytes) -> TokenIds | None:
        """Return the ids, special tokens included; None where no engine would say."""
        endpoint = self.endpoint_of(model)
        if endpoint is None or path.partition("?")[0] not in _PATHS:
            return None
        headers = {"content-type": "application/json"}
        try:
            async with self.http.post(
                f"http://{endpoint}/tokenize", data=io.BytesIO(body), headers=headers
            ) as response:
                response.raise_for_status()
                said = msgspec.json.decode(await response.read(), type=_Tokens)
            return np.array(said.tokens, dtype=np.uint32)
        except (aiohttp.ClientError, TimeoutError, ValueError, OverflowError) as error:
            fields = {"endpoint": endpoint, "error": str(error) or repr(error)}
            log.warning("engine did not tokenize", extra=fields)
            return None
