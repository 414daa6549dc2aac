"""`leadsman explain REQUEST FOLDER …`: in a screen, why this worker, or why this refusal.

What it says is `leadsman_extproc.explaining`, which the live page shows too.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leadsman_extproc.explaining import CAPTION, Came, Explained, explained

from leadsman_bench.seeing.recorded import rows
from leadsman_bench.seeing.records import NoRecordsError, open_records
from leadsman_bench.seeing.words import words

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from rich.console import Console
    from rich.table import Table

WIDTH: Final = 100
_OUTCOME: Final = """
SELECT worker, outcome, ttft, cached_tokens, completion_tokens, engine_said FROM outcomes
WHERE request = $request LIMIT 1
"""


def main(argv: list[str]) -> int:
    """Explain one recorded decision; exit status 1 where there is none of that name."""
    parser = argparse.ArgumentParser(prog="leadsman explain", description=main.__doc__)
    parser.add_argument("request", help="its id: x-request-id, or what a refusal's body says")
    parser.add_argument("folders", nargs="+", type=Path, help="journals, of one or more pickers")
    arguments = parser.parse_args(argv)
    try:
        with open_records(arguments.folders) as database:
            told = {"request": arguments.request}
            found = rows(database, "request = $request", told)
            came = _came(database, told)
    except NoRecordsError as error:
        print(f"leadsman explain: {error}", file=sys.stderr)
        return 1
    if not found:
        where = ", ".join(map(str, arguments.folders))
        print(f"leadsman explain: no decision on {arguments.request!r} in {where}", file=sys.stderr)
        return 1
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    show(explained(found[-1], came), console)
    return 0


def _came(database: "DuckDBPyConnection", told: dict[str, Any]) -> Came | None:
    found = database.execute(_OUTCOME, told).fetchone()
    return None if found is None else Came(*found)


def show(told: Explained, console: "Console") -> None:
    """Print the screen."""
    console.print(words(told.request, "bold").append_text(words(f"  {told.asked}", "not bold")))
    console.print(words(told.verdict, "bold"))
    console.print(words(f"Allowed: {told.allowed}"))
    if told.prices:
        console.print(_prices(told))
    for line in told.because:
        console.print(words(f"• {line}"))
    for line in told.then:
        console.print(words(line))


STYLES: Final = {"chosen": "bold", "asked": "", "not_asked": "dim"}


def _prices(told: Explained) -> "Table":
    from rich import box
    from rich.table import Table

    drawn = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=CAPTION, caption_justify="left"
    )
    worker, *numbers, fits = told.columns
    drawn.add_column(worker, max_width=18, no_wrap=True)
    for name in numbers:
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column(fits, no_wrap=True, max_width=15)
    for one in told.prices:
        drawn.add_row(*map(words, one.cells), style=STYLES[one.kind])
    return drawn
