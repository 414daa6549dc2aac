"""Parity: engines are asked off the request path, and read for us where ours are not theirs."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.units import RequestId, TokenIds
from leadsman_extproc.asking import Question
from leadsman_extproc.comparing import Comparing
from leadsman_extproc.metrics import Counts, Page
from leadsman_extproc.models import ServedModel, model_text
from leadsman_extproc.parity import LARGEST, LATEST, Asked, Parity, first_difference
from leadsman_extproc.ports import Arrival, ReadRequest
from leadsman_extproc.reading import Reader
from prometheus_client import CollectorRegistry, generate_latest

from .vocabulary import PLAIN, tokenizer

CHAT = "/v1/chat/completions"
OURS = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{{ effort }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THEIRS = OURS.replace("<|assistant|>", "<|assistant|>\n")
SECRET = "the word that no log may have"


def text(template: str):
    return model_text(tokenizer(), PLAIN, {"default": template}, cache_bytes=2**20)


@dataclass(slots=True)
class Fleet:
    """Engines, each with a template of its own; one without a template says nothing."""

    templates: dict[str, str | None]
    asked: list[tuple[str, Question]] = field(default_factory=list)

    def endpoints(self, model: str) -> Sequence[str]:
        return list(self.templates) if model == "m" else []

    async def __call__(self, model: str, question: Question) -> TokenIds | None:
        return await self.ask(next(iter(self.templates)), question)

    async def ask(self, endpoint: str, question: Question) -> TokenIds | None:
        self.asked.append((endpoint, question))
        template = self.templates[endpoint]
        if template is None:
            return None
        engine = Reader(models=[ServedModel(name="m", text=text(template))], block_sizes=sizes)
        return engine.own.tokens(question.path, question.sent)


def sizes(model: str) -> tuple[int, ...]:
    return (16,)


@dataclass(kw_only=True)
class World:
    """A reader of our own template beside engines."""

    fleet: Fleet
    every: float | None = 10.0
    now: float = 100.0
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.parity = Parity(counts=self.counts, every=self.every)
        self.reader = Reader(
            models=[ServedModel(name="m", text=text(OURS))],
            block_sizes=sizes,
            tokenize=self.fleet,
            parity=self.parity,
        )
        self.comparing = Comparing(
            models=["m"],
            parity=self.parity,
            engines=self.fleet,
            own=self.reader.own,
            clock=lambda: self.now,
            rng=Random(1),
        )

    def compare(self, after: float = 0.0) -> None:
        self.now += after
        asyncio.run(self.comparing.once())

    def read(self, said: str = SECRET, **fields) -> ReadRequest:
        body = {"model": "m", "messages": [{"role": "user", "content": said}], **fields}
        sent = msgspec.json.encode(body)
        read = self.reader.read(
            Arrival(id=RequestId("r"), headers={":path": CHAT}, body=sent, at=self.now)
        )
        if not isinstance(read, ReadRequest):
            read = asyncio.run(waited_for(read))
        return read


async def waited_for(read):
    return await read


def test_an_engine_of_the_same_template_is_asked_once_for_each_probe():
    world = World(fleet=Fleet({"a": OURS, "b": OURS}))

    world.compare()
    world.compare(after=1.0)

    probed = [question.sent for endpoint, question in world.fleet.asked if endpoint == "a"]
    assert len(probed) == len(set(probed)) > 5
    assert world.counts.parity == {"alike": len(world.fleet.asked)}
    assert world.parity.trusts("m")


def test_another_template_is_found_at_the_start_and_the_engine_tokenizes_from_then_on():
    world = World(fleet=Fleet({"a": THEIRS}))
    world.compare()

    read = world.read()

    expected = asyncio.run(world.fleet.ask("a", world.fleet.asked[-1][1]))
    assert not world.parity.trusts("m")
    assert read.request.tokens_are_exact
    assert read.request.prompt_tokens == len(expected)
    assert world.fleet.asked[-1][1].sent.find(SECRET.encode()) > 0


def test_where_the_engine_does_not_say_meanwhile_the_request_is_an_estimate_without_keys():
    world = World(fleet=Fleet({"a": THEIRS}))
    world.compare()
    world.fleet.templates["a"] = None

    read = world.read()

    assert (read.request.tokens_are_exact, read.request.keys) == (False, {})


def test_parity_is_trusted_again_once_the_engine_has_our_template():
    world = World(fleet=Fleet({"a": THEIRS}))
    world.compare()
    world.fleet.templates["a"] = OURS

    world.compare(after=1.0)

    asked = len(world.fleet.asked)
    assert world.parity.trusts("m")
    assert world.read().request.tokens_are_exact
    assert len(world.fleet.asked) == asked


def test_an_engine_that_stays_different_is_asked_less_and_less_often():
    world = World(fleet=Fleet({"a": THEIRS}))
    world.compare()
    at = []
    for second in range(1, 1500):
        before = len(world.fleet.asked)
        world.compare(after=1.0)
        if len(world.fleet.asked) > before:
            at.append(second)

    gaps = np.diff([0, *at])
    assert gaps[:6].tolist() == [1, 2, 4, 8, 16, 32]
    assert gaps[-1] == LATEST


def test_a_difference_goes_with_its_engine():
    world = World(fleet=Fleet({"a": THEIRS, "b": OURS}))
    world.compare()
    distrusted = not world.parity.trusts("m")
    del world.fleet.templates["a"]

    world.compare()

    assert distrusted
    assert world.parity.trusts("m")


def test_an_engine_that_comes_back_is_met_anew():
    world = World(fleet=Fleet({"a": OURS}))
    world.compare()
    world.fleet.templates = {}
    world.compare()
    world.fleet.templates = {"a": THEIRS}

    world.compare()

    assert not world.parity.trusts("m")


def test_no_answer_is_no_verdict():
    world = World(fleet=Fleet({"a": None}))

    world.compare()

    assert set(world.counts.parity) == {"unanswered"}
    assert world.parity.trusts("m")


def test_a_sample_of_requests_is_compared_and_shows_what_the_probes_do_not():
    only_with_effort = OURS.replace("{{ effort }}", "{{ '!' if effort else '' }}")
    world = World(fleet=Fleet({"a": only_with_effort}))
    world.compare()
    trusted = world.parity.trusts("m")

    world.read(chat_template_kwargs={"effort": "high"})
    world.compare()

    assert trusted
    assert not world.parity.trusts("m")


def test_what_showed_a_difference_is_what_settles_it():
    only_with_effort = OURS.replace("{{ effort }}", "{{ '!' if effort else '' }}")
    world = World(fleet=Fleet({"a": only_with_effort}))
    world.read(chat_template_kwargs={"effort": "high"})
    world.compare()
    world.compare(after=2.0)
    still = world.parity.trusts("m")

    world.fleet.templates["a"] = OURS
    world.compare(after=10.0)

    assert (still, world.parity.trusts("m")) == (False, True)


def test_samples_are_taken_no_more_often_than_asked_for():
    world = World(fleet=Fleet({"a": OURS}), every=10.0)
    world.compare()
    probes = len(world.fleet.asked)

    for _ in range(100):
        world.now += 0.5
        world.read()
        world.compare()

    assert len(world.fleet.asked) - probes == 5


@pytest.mark.parametrize(("every", "said"), [(None, "short"), (10.0, "x" * LARGEST)])
def test_no_sample_is_taken_where_none_are_wanted_nor_of_a_large_body(every, said):
    world = World(fleet=Fleet({"a": OURS}), every=every)
    world.compare()
    probes = len(world.fleet.asked)

    world.read(said)
    world.compare()

    assert len(world.fleet.asked) == probes


def test_an_answer_that_counts_other_tokens_brings_the_next_sample_forward():
    world = World(fleet=Fleet({"a": OURS}), every=1000.0)
    world.read()
    world.compare()
    before = world.counts.parity["alike"]

    world.reader.doubt("m")
    world.now += 2.0
    world.read()
    world.compare()

    assert world.counts.parity["alike"] == before + 1
    assert world.counts.parity["miscounted"] == 1


def test_a_difference_is_told_by_places_and_ids_and_never_by_text(caplog):
    caplog.set_level(logging.DEBUG)
    world = World(fleet=Fleet({"a": OURS}))
    world.compare()
    world.fleet.templates["a"] = THEIRS
    world.read()

    world.compare()

    (told,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    ids = world.reader.own.tokens(CHAT, world.fleet.asked[-1][1].sent).tolist()
    assert told.position == len(ids)
    assert told.ours == ids[told.ids_from :]
    assert told.theirs[: len(told.ours)] == told.ours
    assert told.their_tokens == told.our_tokens + 1
    assert not any("no log may" in str(vars(one)) for one in caplog.records)


def test_prometheus_sees_which_models_an_engine_tokenizes_for():
    world = World(fleet=Fleet({"a": THEIRS}))
    world.compare()
    registry = CollectorRegistry()
    registry.register(Page(world.counts))

    page = generate_latest(registry).decode()

    assert 'leadsman_token_parity{model="m"} 0.0' in page
    assert 'leadsman_parity_total{verdict="unlike"} 1.0' in page


def test_a_request_is_read_while_an_engine_hangs():
    world = World(fleet=Fleet({"a": OURS}))

    async def hang(endpoint, question):
        await asyncio.Event().wait()

    async def read_meanwhile():
        world.comparing.engines = type("Hung", (), {"endpoints": world.fleet.endpoints})()
        world.comparing.engines.ask = hang
        task = asyncio.create_task(world.comparing.run())
        await asyncio.sleep(0)
        read = world.reader.read(
            Arrival(id=RequestId("r"), headers={":path": CHAT}, body=BODY, at=world.now)
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return read

    assert asyncio.run(read_meanwhile()).request.tokens_are_exact


BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_the_first_difference_is_where_the_shared_beginning_ends(ours, theirs):
    at = first_difference(np.array(ours, np.uint32), np.array(theirs, np.uint32))

    if at is None:
        assert ours == theirs
    else:
        assert ours[:at] == theirs[:at]
        assert ours[at : at + 1] != theirs[at : at + 1]


@given(st.lists(st.sampled_from(["differ", "settle", "gone"]), max_size=8))
def test_a_model_is_trusted_exactly_while_no_engine_differs(moves):
    parity = Parity(counts=Counts())
    differing = set()
    for move, endpoint in zip(moves, "abababab", strict=False):
        match move:
            case "differ":
                parity.differs(Asked("m", endpoint, CHAT, BODY), 0.0)
                differing.add(endpoint)
            case "settle":
                parity.settle("m", endpoint)
                differing.discard(endpoint)
            case _:
                parity.forget("m", {"a", "b"} - {endpoint})
                differing.discard(endpoint)

        assert parity.trusts("m") == (not differing)
        assert {asked.endpoint for asked in parity.due(1e9)} == differing
