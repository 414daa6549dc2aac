"""The records of one or more pickers as two tables, whatever form their files have.

A folder holds lines that grow, lines that are full, and Parquet (`leadsman_extproc.journal`);
DuckDB reads all of it in place. Lines beside the Parquet that was made of them are read once. What
a file of an older version lacks is null.

To read a line is to parse it whole, which takes ten times what a query does with it. Whoever asks
several things of all records says what to keep: that much of the lines is parsed once, into memory
(some 300 bytes an outcome), and spilled to disk by DuckDB where that is short. Parquet stays where
it is: it is read by column.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
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


@dataclass(frozen=True, slots=True)
class Kept:
    """What is asked of again and again: these columns of the rows of which `where` holds."""

    columns: Sequence[str]
    where: str = "true"


NOTHING: Final[Mapping[str, Kept]] = MappingProxyType({})


def open_records(
    folders: Sequence[Path], *, threads: int | None = None, keep: Mapping[str, Kept] = NOTHING
) -> "DuckDBPyConnection":
    """Open the records as the tables `decisions` and `outcomes`. Raises NoRecordsError.

    keep: by table, all that it is to have of lines; it keeps that in memory.
    """
    import duckdb

    database = duckdb.connect()
    if threads is not None:
        database.execute("SET threads = $threads", {"threads": threads})
    database.execute("SET enable_progress_bar = false")
    # of lines DuckDB guesses that there are few, and would compare each with each
    database.execute("SET asof_loop_join_threshold = 0")
    database.execute("SET TimeZone = 'UTC'")
    # who asks for an order says so; to keep that of the files costs memory, and waits for the first
    database.execute("SET preserve_insertion_order = false")
    found = {kind: files_of(folders, kind) for kind in KINDS}
    if not any(found.values()):
        told = ", ".join(map(str, folders))
        raise NoRecordsError(f"{told}: neither decisions*.jsonl nor outcomes*.jsonl, nor Parquet")
    for kind, files in found.items():
        _table(database, kind, files, keep.get(kind)).create_view(kind)
    return database


def _table(
    database: "DuckDBPyConnection", kind: str, files: Sequence[Path], keep: Kept | None
) -> "DuckDBPyRelation":
    lines = [str(path) for path in files if path.suffix == ".jsonl"]
    parquet = [str(path) for path in files if path.suffix == ".parquet"]
    parts = [_lines(database, kind, lines)] if lines else []
    if lines and keep is not None:
        parts = [_held(database, parts[0], kind, keep)]
    if parquet or not lines:
        told = _parquet(database, kind, parquet) if parquet else _empty(database, kind)
        parts.append(told if keep is None else told.project(_quoted(keep.columns)))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part)
    return whole


def _held(
    database: "DuckDBPyConnection", lines: "DuckDBPyRelation", kind: str, keep: Kept
) -> "DuckDBPyRelation":
    """Parse lines once."""
    lines.filter(keep.where).project(_quoted(keep.columns)).create(f"kept_{kind}")
    return database.table(f"kept_{kind}")


def _lines(database: "DuckDBPyConnection", kind: str, paths: Sequence[str]) -> "DuckDBPyRelation":
    read = database.read_json(
        list(paths),
        columns=dict(COLUMNS[kind]),
        format="newline_delimited",
        ignore_errors=True,
        maximum_object_size=MOST_LINE,
    )
    return read.filter("request IS NOT NULL").project(f"* REPLACE ({LEFT_OUT[kind]})")


def _parquet(database: "DuckDBPyConnection", kind: str, paths: Sequence[str]) -> "DuckDBPyRelation":
    read = database.read_parquet(list(paths), union_by_name=True)
    there = set(read.columns)
    told = (f'"{n}"' if n in there else f'NULL::{t} AS "{n}"' for n, t in COLUMNS[kind].items())
    return read.project(", ".join(told)).project(f"* REPLACE ({LEFT_OUT[kind]})")


def _empty(database: "DuckDBPyConnection", kind: str) -> "DuckDBPyRelation":
    nothing = ", ".join(f'NULL::{type_} AS "{name}"' for name, type_ in COLUMNS[kind].items())
    return database.sql(f"SELECT {nothing} WHERE false")


def _quoted(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)
