"""Prompts for the rows of a trace, made so that they share exactly what the rows share.

Each piece id stands for a fixed run of words, one token each: `data/words.txt` holds words that
DeepSeek's tokenizer gives one token when a space comes before them (a test checks all of them).
So a prompt of n tokens has n words, and two prompts share tokens exactly as far as they share
pieces.

As a chat, every piece is one message, user and assistant in turn, as in a conversation. Where the
last piece would be the assistant's, it joins the user's message before it. A chat template puts
its own few tokens between messages, at the same places for the same pieces, so prompts still share
what their full pieces share; the prompt is longer than the row by those tokens.
"""

from functools import cache
from importlib import resources
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt
from leadsman.units import TokenIds, Tokens

from leadsman_bench.traces import TraceRequest

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_SCATTER = np.uint64(0xBF58476D1CE4E5B9)


class Message(TypedDict):
    """One message of a chat."""

    role: Literal["user", "assistant"]
    content: str


@cache
def words() -> tuple[str, ...]:
    """Return the words that are one token each after a space."""
    text = (resources.files("leadsman_bench") / "data" / "words.txt").read_text(encoding="utf-8")
    return tuple(text.split())


def token_ids(request: TraceRequest, *, vocabulary: int = 100_000) -> TokenIds:
    """Return the prompt as token ids below `vocabulary`, shape (input_tokens,)."""
    return _draws(request, vocabulary)[: request.input_tokens].astype(np.uint32)


def chat_messages(request: TraceRequest) -> list[Message]:
    """Return the prompt as a conversation that ends with the user's message."""
    pieces = _texts(request)
    if len(pieces) % 2 == 0:
        pieces[-2:] = [pieces[-2] + pieces[-1]]
    return [
        {"role": "assistant" if number % 2 else "user", "content": piece}
        for number, piece in enumerate(pieces)
    ]


def text(request: TraceRequest) -> str:
    """Return the prompt as one text, a space before every word."""
    return "".join(_texts(request))


def _texts(request: TraceRequest) -> list[str]:
    vocabulary = words()
    drawn = _draws(request, len(vocabulary))[: request.input_tokens].tolist()
    size = request.piece_tokens
    return [
        "".join(f" {vocabulary[word]}" for word in drawn[start : start + size])
        for start in range(0, len(drawn), size)
    ]


def _draws(request: TraceRequest, below: Tokens) -> npt.NDArray[np.uint64]:
    """Return numbers below `below` that depend on piece and place only, all pieces in a row."""
    pieces = np.array(request.pieces, dtype=np.uint64)[:, None] * np.uint64(request.piece_tokens)
    within = np.arange(1, request.piece_tokens + 1, dtype=np.uint64)
    places: npt.NDArray[np.uint64] = (pieces + within).ravel()
    places *= _STRIDE
    places ^= places >> np.uint64(29)
    places *= _SCATTER
    places >>= np.uint64(32)
    places %= np.uint64(below)
    return places
