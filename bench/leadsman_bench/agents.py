"""Agents that fix a failing test: tasks of forty to fifty calls, made by a seed.

An agent reads its task, reads files (several at once, each by a call of its own), thinks, edits,
runs tests, and starts over, until it is done. Each call of its main line has all before it in its
prompt: the instructions and tools that all agents share, its own task, and every answer and tool
result so far. A call that reads a file has what the main line had when it was sent, and the file;
the main line goes on when all of them are over, with a note of each. Now and then a caller gives a
call up midway.

Figures and their sources. From the talk "Your Self-Hosted LLM Needs to Say No" (Jain and Khatri):
about 14 files read and about 10 tests run, 40-50 calls a task, some quick and some long, bursts
within seconds. Chosen, as no source gives them: instructions and tools of 4,096 tokens, tool
results of 200 tokens in the median (log-normal, sigma 1: most are listings and snippets, few are
files), answers of 90 tokens in the median (a tool call is short; sigma 0.9), the last one 400;
a tool takes 0.3 s in the median, a test run 4 s (both sigma 0.7); two to five reads at once; one
call in fifty is given up, after 2 s.
"""

from collections.abc import Iterator
from itertools import count
from math import exp
from random import Random

from leadsman.units import Seconds, Tokens

from leadsman_bench.tasks import Call, Task
from leadsman_bench.traces import TraceRequest

FEWEST_CALLS, MOST_CALLS = 40, 50
MEAN_CALLS = (FEWEST_CALLS + MOST_CALLS) / 2
FILES, TESTS = 14, 10
PIECE: Tokens = 64
SHARED: Tokens = 4096
RESULT, RESULT_SPREAD = 200.0, 1.0
ANSWER, ANSWER_SPREAD, LAST_ANSWER = 90.0, 0.9, 400
TOOL, TEST_RUN, PAUSE_SPREAD = 0.3, 4.0, 0.7
FAN_OUT = (2, 5)
GIVEN_UP, GIVES_UP_AFTER = 0.02, 2.0
LONGEST_RESULT: Tokens = 4000
LONGEST_ANSWER: Tokens = 2000


def tasks(*, tasks_per_s: float, seed: int, tenant: str | None = None) -> Iterator[Task]:
    """Yield agents' tasks for ever, by the time at which each begins, a Poisson process."""
    rng = Random(f"{seed}/agents/{tenant}")
    pieces = count(SHARED // PIECE)
    at = 0.0
    for number in count():
        at += rng.expovariate(tasks_per_s)
        name = f"{tenant or 'agent'}-{number}"
        yield Task(name=name, session=name, tenant=tenant, calls=_Agent(at, pieces, rng).calls())


class _Agent:
    """One agent: its main line so far, in pieces, and the calls that it makes."""

    def __init__(self, at: Seconds, pieces: Iterator[int], rng: Random) -> None:
        self._at, self._pieces, self._rng = at, pieces, rng
        self._line: tuple[int, ...] = tuple(range(SHARED // PIECE))
        self._calls: list[Call] = []

    def calls(self) -> tuple[Call, ...]:
        rng, wanted = self._rng, self._rng.randint(FEWEST_CALLS, MOST_CALLS)
        files = FILES
        self._grow(self._result())
        last = self._call((), 0.0)
        tests_every = max(2, (wanted - FILES) // TESTS)
        while len(self._calls) < wanted - 1:
            if files and wanted - len(self._calls) > FAN_OUT[0] + 1:
                at_once = min(rng.randint(*FAN_OUT), files, wanted - len(self._calls) - 2)
                files -= at_once
                reads = tuple(self._read(last) for _ in range(at_once))
                for _ in reads:
                    self._grow(self._answer())
                last = self._call(reads, self._pause(TOOL))
            elif len(self._calls) % tests_every == 0:
                last = self._call((last,), self._pause(TEST_RUN))
            else:
                last = self._call((last,), self._pause(TOOL))
        self._call((last,), self._pause(TOOL), answer=LAST_ANSWER)
        return tuple(self._calls)

    def _call(self, after: tuple[int, ...], thinks: Seconds, answer: Tokens | None = None) -> int:
        """Make the main line's next call, and note its answer and a tool's result.

        Gives its place.
        """
        answer = answer or self._answer()
        place = self._add(self._line, answer, after, thinks)
        self._grow(answer + self._result())
        return place

    def _read(self, after: int) -> int:
        """Make a call of its own that reads a file."""
        line = self._line + self._new(self._result())
        return self._add(line, self._answer(), (after,), self._pause(TOOL))

    def _add(
        self, line: tuple[int, ...], answer: Tokens, after: tuple[int, ...], thinks: Seconds
    ) -> int:
        tokens = len(line) * PIECE
        row = TraceRequest(
            at=self._at,
            input_tokens=tokens,
            output_tokens=answer,
            pieces=line,
            piece_tokens=PIECE,
        )
        hangs_up = GIVES_UP_AFTER if self._rng.random() < GIVEN_UP else None
        self._calls.append(Call(row=row, after=after, thinks=thinks, hangs_up=hangs_up))
        return len(self._calls) - 1

    def _grow(self, tokens: Tokens) -> None:
        self._line += self._new(tokens)

    def _new(self, tokens: Tokens) -> tuple[int, ...]:
        return tuple(next(self._pieces) for _ in range(max(1, round(tokens / PIECE))))

    def _result(self) -> Tokens:
        return min(LONGEST_RESULT, self._draw(RESULT, RESULT_SPREAD))

    def _answer(self) -> Tokens:
        return min(LONGEST_ANSWER, self._draw(ANSWER, ANSWER_SPREAD))

    def _draw(self, median: float, spread: float) -> Tokens:
        return max(1, round(median * exp(spread * self._rng.gauss(0.0, 1.0))))

    def _pause(self, median: Seconds) -> Seconds:
        return median * exp(PAUSE_SPREAD * self._rng.gauss(0.0, 1.0))
