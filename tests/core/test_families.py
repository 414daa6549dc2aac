import numpy as np
import pytest
from leadsman import families as module
from leadsman.families import ANSWER_BLOCKS, Families
from leadsman.request import Request
from leadsman.units import RequestId

SIZE = 16
NOTHING = np.zeros(2, dtype=np.int64)


def chain(seed, blocks):
    return np.random.default_rng(seed).integers(1, 2**64, blocks, dtype=np.uint64)


def ask(keys):
    return Request(
        id=RequestId("r"),
        model="m",
        prompt_tokens=len(keys) * SIZE,
        arrived_at=0.0,
        keys={SIZE: keys},
    )


def cached(blocks):
    return np.array([0, blocks * SIZE], dtype=np.int64)


def test_a_turn_belongs_to_the_prompt_that_it_goes_on_from():
    families, talk = Families(), chain(1, 60)
    first = families.of(ask(talk[:20]), NOTHING)

    second = families.of(ask(talk[:40]), cached(25))
    third = families.of(ask(talk), cached(45))

    assert first == second == third


def test_conversations_that_share_a_system_prompt_are_no_family():
    families, system = Families(), chain(1, 10)
    talks = [np.concatenate([system, chain(seed, 5)]) for seed in (2, 3)]

    first, second = families.of(ask(talks[0]), NOTHING), families.of(ask(talks[1]), cached(10))

    assert first != second


def test_the_latest_turn_is_found_before_older_ones():
    families, talk = Families(), chain(1, 60)
    families._by_end[int(talk[9])] = 111
    families._by_end[int(talk[29])] = 222

    family = families.of(ask(talk[:50]), cached(40))

    assert family == 222


@pytest.mark.parametrize(
    ("answer", "is_kin"), [(ANSWER_BLOCKS - 1, True), (ANSWER_BLOCKS + 1, False)]
)
def test_an_answer_may_be_only_so_long(answer, is_kin):
    families, talk = Families(), chain(1, 1000)
    first = families.of(ask(talk[:100]), NOTHING)

    second = families.of(ask(talk[:900]), cached(100 + answer - 1))

    assert (second == first) is is_kin


def test_a_prompt_without_a_full_block_has_no_family():
    families = Families()

    assert families.of(ask(chain(1, 0)), NOTHING) is None


def test_no_worker_at_all_is_no_reason_to_fail():
    families, talk = Families(), chain(1, 3)

    assert families.of(ask(talk), np.zeros(0, dtype=np.int64)) == int(talk[-1])


def test_the_oldest_prompts_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(module, "MOST_PROMPTS", 3)
    families = Families()
    talks = [chain(seed, 20) for seed in range(4)]
    first = [families.of(ask(talk[:10]), NOTHING) for talk in talks]

    again = [families.of(ask(talk), cached(10)) for talk in reversed(talks)]

    assert again[0] == first[3]
    assert again[3] != first[0]
