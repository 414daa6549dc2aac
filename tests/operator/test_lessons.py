import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.curve import fingerprint
from leadsman.engine import EngineSettings
from leadsman.records import Learned, WorkerSeen
from leadsman_operator.kube import ApiError
from leadsman_operator.lessons import MOST, LessonBook, Lessons
from leadsman_operator.objects import Key

from tests.settings import SETTINGS

PLACE = Key("n", "lessons")

samples = st.lists(
    st.tuples(st.integers(1, 1000), st.floats(0.001, 100)), min_size=1, max_size=4
).map(tuple)
learned = st.builds(
    Learned,
    worker=st.sampled_from(["a", "b"]),
    fingerprint=st.sampled_from(["f", "g", "h"]),
    samples=samples,
    step_weights=st.none() | st.tuples(*[st.floats(0, 1)] * 6),
)


def lesson(name, count=1, weights=None):
    return Learned(worker="w", fingerprint=name, samples=((10, 0.5),) * count, step_weights=weights)


@given(st.lists(learned, max_size=8))
def test_of_each_fingerprint_the_lesson_with_most_samples_is_kept(several):
    lessons = Lessons()

    lessons.take(several)

    kept = {one["fingerprint"]: len(one["samples"]) for one in json.loads(lessons.written())}
    most = {}
    for one in several:
        most[one.fingerprint] = max(most.get(one.fingerprint, 0), len(one.samples))
    assert kept == most


@given(st.lists(learned, max_size=8))
def test_what_is_written_comes_back(several):
    lessons = Lessons()
    lessons.take(several)

    assert Lessons.read(lessons.written()).written() == lessons.written()


def test_the_oldest_lessons_make_room():
    lessons = Lessons()

    lessons.take(lesson(str(n)) for n in range(MOST + 2))

    kept = [one["fingerprint"] for one in json.loads(lessons.written())]
    assert kept == [str(n) for n in range(2, MOST + 2)]


def test_a_worker_is_told_what_is_known_of_its_like_only():
    lessons = Lessons()
    lessons.take([lesson(fingerprint(SETTINGS), weights=(1.0,) * 6)])
    seen = WorkerSeen(worker="new", endpoint="e", settings=SETTINGS)
    other = WorkerSeen(worker="new", endpoint="e", settings=EngineSettings(**unlike()))

    assert lessons.of(seen) == Learned(
        worker="new",
        fingerprint=fingerprint(SETTINGS),
        samples=((10, 0.5),),
        step_weights=(1.0,) * 6,
    )
    assert lessons.of(other) is None


def unlike():
    return {name: getattr(SETTINGS, name) for name in SETTINGS.__slots__} | {"max_num_seqs": 8}


class Cluster:
    """ConfigMaps of one namespace."""

    def __init__(self, data=None):
        self.data = data

    async def get(self, path):
        if self.data is None:
            raise ApiError(404, "no such thing")
        return json.dumps({"data": self.data}).encode()

    async def merge(self, path, body):
        assert path == "/api/v1/namespaces/n/configmaps/lessons"
        if self.data is None:
            raise ApiError(404, "no such thing")
        self.data |= body["data"]

    async def create(self, path, body):
        assert path == "/api/v1/namespaces/n/configmaps"
        self.data = body["data"]


@pytest.mark.parametrize("there", [None, {}, {"lessons.json": "[]", "theirs": "x"}])
async def test_lessons_are_kept_beside_whatever_else_is_there(there):
    cluster = Cluster(there)
    book = LessonBook(api=cluster, place=PLACE)
    lessons = await book.load()
    lessons.take([lesson("f")])

    assert await book.save(lessons)

    assert (await book.load()).written() == lessons.written()
    assert (there or {}).get("theirs") == cluster.data.get("theirs")


async def test_what_cannot_be_read_is_begun_anew_and_said(caplog):
    book = LessonBook(api=Cluster({"lessons.json": "{"}), place=PLACE)

    assert len(await book.load()) == 0
    assert [one.message for one in caplog.records] == ["lessons not read"]
