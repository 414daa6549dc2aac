"""Rewrites a file of records as Parquet: `python -m leadsman_extproc.parquet FILE.jsonl`.

DuckDB does it, on one core and in bounded memory. The new file gets its name once it is whole, and
only then does the old one go, so a reader never sees half of either, nor, for more than a moment,
both. A line that is cut off is left out.
"""

import sys
from pathlib import Path

from leadsman_extproc.columns import DECISIONS, OUTCOMES, Columns

MEMORY = "512MB"


def columns_of(path: Path) -> Columns:
    """Say which columns a file's rows have, by its name."""
    return DECISIONS if path.name.startswith("decisions") else OUTCOMES


def as_parquet(path: Path) -> Path:
    """Rewrite a file; gives the new one."""
    import duckdb  # noqa: PLC0415  # an extra: nobody needs it who does not ask for Parquet

    made = path.with_suffix(".parquet")
    half = path.with_suffix(".parquet.half")
    with duckdb.connect() as database:
        database.execute("SET threads = 1")
        database.execute("SET enable_progress_bar = false")
        database.execute("SET memory_limit = $most", {"most": MEMORY})
        database.execute(
            "COPY (SELECT * FROM read_json($lines, columns = $columns, "
            "format = 'newline_delimited', ignore_errors = true) WHERE request IS NOT NULL) "
            "TO $half (FORMAT parquet, COMPRESSION zstd)",
            {"lines": str(path), "columns": dict(columns_of(path)), "half": str(half)},
        )
    half.replace(made)
    path.unlink()
    return made


if __name__ == "__main__":
    as_parquet(Path(sys.argv[1]))
