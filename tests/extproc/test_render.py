"""From the body to the tokens: those of a real vLLM, as recorded and, where there is one, live.

rendered.jsonl.gz holds, after a line that says which vLLM it was, one line a body: family,
template, path, body, and the number and a digest of its tokens, or null where vLLM refused it.
To record anew: PARITY_RECORD=1 PARITY_VLLM=HOST:PORT PARITY_EXAMPLES=8, and run this file.
"""

import gzip
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from leadsman_extproc.models import ModelText, ServedModel
from leadsman_extproc.own_tokens import OwnTokens

from .families import FAMILIES, FEATURES, anthropic, bodies, responses
from .vllm_render import Renderer
from .vocabulary import PLAIN, text_of

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BY_QWEN = ("anthropic", "responses")
"""APIs whose requests bring no template, and so are told by the server's own."""
RECORDED = Path(__file__).parent / "rendered.jsonl.gz"
ADDRESS = os.environ.get("PARITY_VLLM")
EXAMPLES = int(os.environ.get("PARITY_EXAMPLES", "15"))
TALLY: Counter[tuple[str, str, str]] = Counter()
ROWS: list[Any] = []


@cache
def text(family: str, name: str) -> ModelText:
    return text_of(family, name, PLAIN)


def ours(family: str, name: str, path: str, body: dict[str, Any]) -> list[int] | None:
    own = OwnTokens([ServedModel(name="m", text=text(family, name))])
    ids = own.tokens(path, msgspec.json.encode(body))
    return None if ids is None else ids.tolist()


def digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(np.array(ids, np.uint32).tobytes(), digest_size=8).hexdigest()


def recorded() -> list[Any]:
    with gzip.open(RECORDED, "rt") as lines:
        return [json.loads(line) for line in lines][1:]


@pytest.mark.parametrize("family", [*FAMILIES, *BY_QWEN])
def test_every_recorded_body_has_the_tokens_that_vllm_gave_it(family):
    rows = [row for row in recorded() if row[0] == family]
    template = "qwen" if family in BY_QWEN else family

    unlike = []
    for _, name, path, body, count, mark in rows:
        ids = ours(template, name, path, body)
        if count is not None and (ids is None or (len(ids), digest(ids)) != (count, mark)):
            unlike.append((name, body))

    assert unlike == []
    assert sum(row[4] is not None for row in rows) > len(rows) / 2


@pytest.fixture(scope="module")
def vllm() -> Iterator[Renderer]:
    if ADDRESS is None:
        pytest.skip("PARITY_VLLM does not say where a vLLM renders: see vllm_render")
    renderer = Renderer(ADDRESS)
    yield renderer
    report(renderer.version())


def report(version: str) -> None:
    print(f"\nvLLM {version}")
    print(f"{'family':10}{'feature':12}{'conversations':>14}{'refused':>9}{'mismatches':>12}")
    for family, feature in dict.fromkeys(key[:2] for key in TALLY):
        alike, unlike, refused = (TALLY[family, feature, v] for v in ("alike", "unlike", "refused"))
        print(f"{family:10}{feature:12}{alike + unlike:14}{refused:9}{unlike:12}")
    if os.environ.get("PARITY_RECORD"):
        lines = [json.dumps(row, ensure_ascii=False) for row in [{"vllm": version}, *ROWS]]
        RECORDED.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def compare(vllm: Renderer, key: tuple[str, str], name: str, path: str, body: Any) -> None:
    family, feature = key
    template = "qwen" if family in BY_QWEN else family
    body = {"model": "m", **body}
    brought = (
        {} if path != CHAT else {"chat_template": text(template, name).templates["default"].source}
    )

    theirs = vllm.ids(path, body | brought)

    said = [None, None] if theirs is None else [len(theirs), digest(theirs)]
    if not tells_the_date(name, body):
        ROWS.append([family, name, path, body, *said])
    mine = ours(template, name, path, body)
    verdict = "refused" if theirs is None else "alike" if mine == theirs else "unlike"
    TALLY[family, feature, verdict] += 1
    assert theirs is None or mine == theirs


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_has_the_tokens_that_a_real_vllm_gives_it(vllm, family, feature):
    @settings(max_examples=EXAMPLES, phases=[Phase.generate], derandomize=True)
    @given(st.sampled_from(FAMILIES[family]), bodies(family, feature))
    def check(name: str, body: dict[str, Any]) -> None:
        compare(vllm, (family, feature), name, CHAT, as_sent(body))

    check()


def test_an_anthropic_conversation_has_the_tokens_that_a_real_vllm_gives_it(vllm):
    @settings(max_examples=9 * EXAMPLES, phases=[Phase.generate], derandomize=True)
    @given(anthropic())
    def check(body: dict[str, Any]) -> None:
        compare(vllm, ("anthropic", "all"), "qwen3", MESSAGES, body)

    check()


def test_a_responses_request_has_the_tokens_that_a_real_vllm_gives_it(vllm):
    @settings(max_examples=9 * EXAMPLES, phases=[Phase.generate], derandomize=True)
    @given(responses())
    def check(body: dict[str, Any]) -> None:
        compare(vllm, ("responses", "all"), "qwen3", RESPONSES, body)

    check()


def tells_the_date(name: str, body: dict[str, Any]) -> bool:
    """Whether the tokens are others tomorrow: Llama 3.2 says today's date unless it is told one."""
    return name == "llama3_2" and "date_string" not in body.get("chat_template_kwargs", {})


def as_sent(body: dict[str, Any]) -> dict[str, Any]:
    """A chat as the API takes it: arguments of calls are texts."""
    for message in body["messages"]:
        for call in message.get("tool_calls", []):
            if not isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return body
