"""`leadsman replay FOLDER …`: decides recorded decisions again, and shows what differs.

By today's code, and under another budget where one is given: a file with the fields of a budget,
which go before those that each decision was made under. What was predicted is taken as recorded;
what was not is guessed by its floors, and said to be. Each decision stands alone: that a request
let in would have lengthened the queue for the next is not played (`leadsman bench simulate` is for
that). Nothing is left to chance: the price of who was asked is known and is its floor, and who was
not asked was no better than the best. So by the same code and budget decisions come out as they
were, and what differs is what was changed. Nobody is let in as a probe.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml
from leadsman.budget import Budget, BudgetError
from leadsman.decide import decide
from leadsman.lobby import Held
from leadsman.prediction import Admitted, Decision
from leadsman.route import same
from leadsman.units import Seconds, WorkerId
from leadsman_extproc.decided import Row
from leadsman_extproc.explaining import seconds

from leadsman_bench.report import Line, table
from leadsman_bench.seeing.recorded import KnownWorker, WorkerErrors, candidates_of, rows
from leadsman_bench.seeing.records import NoRecordsError, open_records
from leadsman_bench.seeing.words import words

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from rich.console import Console

WIDTH: Final = 100
SEED: Final = 1
_ERRORS: Final = """
SELECT sent_at + ttft, worker, predicted_ttft, predicted_queue_wait, ttft FROM outcomes
WHERE ttft IS NOT NULL AND predicted_ttft IS NOT NULL ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One decision that is another one now. guessed: it rests on what was not recorded."""

    row: Row
    now: str
    guessed: bool


@dataclass(slots=True)
class Compared:
    """What became of all decisions. moves: by (then, now), refusals by their reason."""

    decided: int = 0
    same: int = 0
    ties: int = 0
    guessed: int = 0
    left_out: int = 0
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


def main(argv: list[str]) -> int:
    """Decide again what pickers decided; exit status 1 where nothing is recorded, 2 for a budget
    that cannot be meant.
    """
    parser = argparse.ArgumentParser(prog="leadsman replay", description=main.__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="journals, of one or more pickers")
    parser.add_argument("--budget", type=Path, help="YAML with the fields of a budget to change")
    parser.add_argument("--model", help="requests of this model alone")
    parser.add_argument("--show", type=int, default=12, help="how many differences to show")
    arguments = parser.parse_args(argv)
    try:
        changes = read_changes(arguments.budget) if arguments.budget else {}
        with open_records(arguments.folders) as database:
            compared = replay(database, changes, model=arguments.model)
    except NoRecordsError as error:
        print(f"leadsman replay: {error}", file=sys.stderr)
        return 1
    except (BudgetError, ValueError, OSError) as error:
        print(f"leadsman replay: {arguments.budget}: {error}", file=sys.stderr)
        return 2
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    show(compared, console, arguments.show)
    return 0


def read_changes(path: Path) -> Mapping[str, Any]:
    """Read the fields of a budget. Raises ValueError for what is none, or cannot be meant."""
    told = yaml.safe_load(path.read_text())
    if not isinstance(told, dict):
        raise ValueError("not the fields of a budget")  # noqa: TRY004  # the user's, not ours
    unknown = told.keys() - Budget.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"no budget has a field {', '.join(sorted(unknown))}")
    msgspec.convert(told, Budget)
    return told


def replay(
    database: "DuckDBPyConnection", changes: Mapping[str, Any], *, model: str | None = None
) -> Compared:
    """Decide every recorded decision again, in the order of time."""
    compared, errors = Compared(), dict[WorkerId, WorkerErrors]()
    learned = _learning(database, errors)
    for row in rows(database, "$model IS NULL OR model = $model", {"model": model}):
        learned(row.at)
        budget = _budget(row, changes)
        if budget is None or not row.decision.candidates:
            compared.left_out += 1
            continue
        candidates = candidates_of(row, errors)
        known = [one for one in candidates.workers if isinstance(one, KnownWorker)]
        decision = decide(row.as_request(), candidates, budget, row.at, NoChance(SEED))
        assert not isinstance(decision, Held), "nobody holds here"
        _compare(compared, row, decision, guessed=any(one.guessed for one in known))
    return compared


class NoChance(Random):
    """Chance that always falls on the first: of floors that are the same, on the lowest."""

    def random(self) -> float:
        """Give the least that there is."""
        return 0.0


def _budget(row: Row, changes: Mapping[str, Any]) -> Budget | None:
    """Give the budget to decide by; None where none was recorded, as for the least loaded."""
    then = row.decision.budget
    if then is None:
        return None
    known = {name: value for name, value in then.items() if name in Budget.__dataclass_fields__}
    return msgspec.convert({**known, **changes, "probes": 0.0}, Budget)


class _Learner:
    """Lets workers' errors be known once the first token that showed them had come."""

    def __init__(
        self, shown: Iterator[Sequence[Any]], errors: dict[WorkerId, WorkerErrors]
    ) -> None:
        self._shown = shown
        self._errors = errors
        self._next = next(shown, None)

    def __call__(self, at: Seconds) -> None:
        while self._next is not None and self._next[0] <= at:
            _, worker, predicted, wait, actual = self._next
            known = self._errors.setdefault(WorkerId(worker), WorkerErrors())
            known.ttfts.add(predicted, actual)
            known.waits.add(wait, max(0.0, actual - (predicted - wait)))
            self._next = next(self._shown, None)


def _learning(database: "DuckDBPyConnection", errors: dict[WorkerId, WorkerErrors]) -> _Learner:
    return _Learner(iter(database.execute(_ERRORS).fetchall()), errors)


def _compare(compared: Compared, row: Row, decision: Decision, *, guessed: bool) -> None:
    compared.decided += 1
    then, now = _told_then(row), _told(decision)
    if then == now:
        compared.same += 1
        return
    if _is_tie(row, decision):
        compared.ties += 1
        return
    compared.guessed += guessed
    compared.moves[_kind(then), _kind(now)] += 1
    compared.differences.append(Difference(row, now, guessed))


def _told(decision: Decision) -> str:
    if isinstance(decision, Admitted):
        return decision.worker
    return f"refused: {decision.reason.replace('_', ' ')}"


def _told_then(row: Row) -> str:
    if row.was_admitted:
        return row.worker or "unknown"
    return f"refused: {(row.reason or 'unknown').replace('_', ' ')}"


def _kind(told: str) -> str:
    return told if told.startswith("refused: ") else "sent"


def _is_tie(row: Row, decision: Decision) -> bool:
    """Whether both were sent, to workers whose prices routing takes for the same."""
    if not (row.was_admitted and isinstance(decision, Admitted)):
        return False
    prices = {one.worker: one.price.ttft for one in row.decision.candidates}
    then, now = prices.get(WorkerId(row.worker or "")), prices.get(decision.worker)
    return then is not None and now is not None and abs(then - now) <= 2 * same(max(then, now))


def show(compared: Compared, console: "Console", most: int) -> None:
    """Print what differs."""
    lines = [
        Line(what="decisions made again", value=f"{compared.decided:,}"),
        Line(what="the same", value=f"{compared.same:,}"),
        Line(what="another worker of the same price", value=f"{compared.ties:,}"),
        Line(what="different", value=f"{len(compared.differences):,}"),
    ]
    lines += [
        Line(what=f"  {then} → {now if then != now else 'another worker'}", value=f"{count:,}")
        for (then, now), count in compared.moves.most_common()
    ]
    lines += [
        Line(what="  of them by what was not recorded", value=f"{compared.guessed:,}"),
        Line(what="left out: nothing was weighed", value=f"{compared.left_out:,}"),
    ]
    console.print(table("Decided again", lines))
    if compared.differences:
        console.print(_differences(compared.differences[:most]))


def _differences(found: Sequence[Difference]) -> Any:
    from rich import box
    from rich.table import Table

    drawn = Table(title="What differs", title_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column("request", max_width=22, no_wrap=True)
    drawn.add_column("prompt", justify="right")
    drawn.add_column("at best", justify="right", no_wrap=True)
    drawn.add_column("then", max_width=26, no_wrap=True)
    drawn.add_column("now", max_width=26, no_wrap=True)
    drawn.add_column("")
    for one in found:
        least = min(each.price.ttft for each in one.row.decision.candidates)
        drawn.add_row(
            words(one.row.request),
            f"{one.row.prompt_tokens:,}",
            seconds(least),
            words(_told_then(one.row)),
            words(one.now),
            "guessed" if one.guessed else "",
        )
    return drawn
