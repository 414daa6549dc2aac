import os
import select
import subprocess
import sys

import pytest
from leadsman_bench.processes import ChildError, answers, children

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
STUBBORN = [sys.executable, "-c", DEAF + "print('up', flush=True); time.sleep(600)"]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def assert_gone(pid):
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, *_ = select.select([process], [], [], 10)
    os.close(process)
    assert ended


def up(held, name):
    return lambda: "up" in held.last_words(name)


def test_children_end_with_the_block(tmp_path):
    with children(tmp_path) as held:
        held.start("one", SLEEPER)
        held.start("two", SLEEPER)
        pids = held.pids()

    assert not any(map(is_alive, pids))


def test_children_end_when_the_block_is_interrupted(tmp_path):
    pids = []

    def interrupted():
        with children(tmp_path) as held:
            held.start("one", SLEEPER)
            pids.extend(held.pids())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert len(pids) == 1
    assert not is_alive(pids[0])


def test_a_child_that_will_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("leadsman_bench.processes.GRACE", 0.2)

    with children(tmp_path) as held:
        held.start("stubborn", STUBBORN)
        held.until("stubborn", up(held, "stubborn"))
        pids = held.pids()

    assert not any(map(is_alive, pids))


def test_a_child_that_ends_early_is_reported_with_its_last_words(tmp_path):
    with children(tmp_path) as held:
        held.start("bad", [sys.executable, "-c", "print('no such port'); exit(3)"])

        with pytest.raises(ChildError, match=r"status 3:\nno such port"):
            held.until("bad", lambda: False)


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path):
    script = (
        "import os, pathlib, sys\n"
        "from leadsman_bench.processes import children\n"
        f"with children(pathlib.Path({str(tmp_path)!r})) as held:\n"
        f"    held.start('one', {SLEEPER!r})\n"
        "    held.until('one', lambda: 'up' in held.last_words('one'))\n"
        "    print(held.pids()[0], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        child = int(parent.stdout.readline())

        parent.kill()

    assert_gone(child)


def test_nothing_answers_on_a_closed_port():
    assert not answers("http://127.0.0.1:1/health")
