"""The records of one or more pickers as two tables, whatever form their files have.

A folder holds lines that grow, lines that are full, and Parquet (`leadsman_extproc.journal`);
DuckDB reads all of it in place. Lines beside the Parquet that was made of them are read once. What
a file of an older version lacks is null.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leadsman_extproc.columns import DECISIONS, OUTCOMES
from leadsman_extproc.journal import KINDS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {"decisions": DECISIONS, "outcomes": OUTCOMES}
MOST_LINE: Final = 64 * 1024 * 1024


class NoRecordsError(Exception):
    """A folder without records; the message says what was looked for."""


def files_of(folders: Iterable[Path], kind: str) -> list[Path]:
    """List the files of one kind, `decisions` or `outcomes`."""
    found: list[Path] = []
    for folder in folders:
        here = [*folder.glob(f"{kind}.jsonl"), *folder.glob(f"{kind}-*.jsonl")]
        parquet = sorted(folder.glob(f"{kind}-*.parquet"))
        rewritten = {path.stem for path in parquet}
        found += [path for path in sorted(here) if path.stem not in rewritten] + parquet
    return [path for path in found if path.stat().st_size]


LEFT_OUT: Final = {
    "decisions": (
        "coalesce(worker, decision->>'$.worker') AS worker, "
        "coalesce(because, decision->>'$.because') AS because, "
        "coalesce(reason, decision->>'$.reason') AS reason"
    ),
    "outcomes": "coalesce(weight, 1.0) AS weight",
}
"""What rows of an earlier version did not say, and what it is."""


def open_records(folders: Sequence[Path], *, threads: int | None = None) -> "DuckDBPyConnection":
    """Open the records as the tables `decisions` and `outcomes`. Raises NoRecordsError."""
    import duckdb

    database = duckdb.connect()
    if threads is not None:
        database.execute("SET threads = $threads", {"threads": threads})
    database.execute("SET enable_progress_bar = false")
    # of lines DuckDB guesses that there are few, and would compare each with each
    database.execute("SET asof_loop_join_threshold = 0")
    database.execute("SET TimeZone = 'UTC'")
    found = {kind: files_of(folders, kind) for kind in KINDS}
    if not any(found.values()):
        told = ", ".join(map(str, folders))
        raise NoRecordsError(f"{told}: neither decisions*.jsonl nor outcomes*.jsonl, nor Parquet")
    for kind, files in found.items():
        table = _table(database, files, COLUMNS[kind])
        table.project(f"* REPLACE ({LEFT_OUT[kind]})").create_view(kind)
    return database


def _table(
    database: "DuckDBPyConnection", files: Sequence[Path], columns: Mapping[str, str]
) -> "DuckDBPyRelation":
    parts = []
    lines = [str(path) for path in files if path.suffix == ".jsonl"]
    if lines:
        read = database.read_json(
            lines,
            columns=dict(columns),
            format="newline_delimited",
            ignore_errors=True,
            maximum_object_size=MOST_LINE,
        )
        parts.append(read.filter("request IS NOT NULL"))
    parquet = [str(path) for path in files if path.suffix == ".parquet"]
    if parquet:
        read = database.read_parquet(parquet, union_by_name=True)
        there = set(read.columns)
        told = (f'"{n}"' if n in there else f'NULL::{t} AS "{n}"' for n, t in columns.items())
        parts.append(read.project(", ".join(told)))
    if not parts:
        nothing = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns.items())
        parts.append(database.sql(f"SELECT {nothing} WHERE false"))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part)
    return whole
