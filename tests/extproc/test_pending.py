"""Lines that wait come out as they were put in, once, in order, and within the bound."""

import threading

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc.pending import FIRST, Pending

ROWS = st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=60)


def taken(pending):
    lines = pending.take()
    told = bytes(lines)
    lines.release()
    return told


@given(ROWS, st.integers(1, 400))
def test_what_is_put_is_taken_once_and_what_is_too_much_is_said(rows, most):
    pending, model, came, expected = Pending(most), b"", [], []

    for row in rows:  # None: whoever writes comes by
        if row is None:
            came.append(taken(pending))
            expected.append(model)
            model = b""
            continue
        line = msgspec.json.encode(row) + b"\n"
        fits = len(model) + len(line) <= most
        assert pending.put(row) == fits
        model += line if fits else b""

    assert [*came, taken(pending)] == [*expected, model]


def test_lines_beyond_the_first_memory_are_kept_whole():
    pending = Pending(100 * FIRST)
    rows = [chr(ord("a") + number % 26) * (FIRST // 7) for number in range(60)]

    for _ in range(3):
        assert all(pending.put(row) for row in rows)
        assert [msgspec.json.decode(line) for line in taken(pending).splitlines()] == rows


def test_nothing_is_lost_while_another_thread_takes():
    pending, came, is_over = Pending(1 << 24), [], threading.Event()

    def take():
        while not is_over.is_set():
            came.append(taken(pending))

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(20_000):
        assert pending.put(number)
    is_over.set()
    thread.join()

    lines = (b"".join(came) + taken(pending)).splitlines()
    assert [int(line) for line in lines] == list(range(20_000))
