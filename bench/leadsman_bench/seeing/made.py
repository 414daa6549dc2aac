"""Records as a fleet of twenty would leave them, by the million: to measure what reads them.

DuckDB draws them itself, so ten million take half a minute. Errors, waits and sizes have long
tails, one request in fifty finds another cache than was credited, one in twelve is refused for what
four workers would take.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leadsman_extproc.journal import Form

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WORKERS: Final = 20
MODELS: Final = 4
HOURS: Final = 48
ASKED: Final = 4
"""Workers that were priced before a request was refused."""

_OUTCOMES: Final = """
SELECT 'r' || lpad(i::VARCHAR, 12, '0') AS request,
  'llama-3.1-70b-4xh100-' || worker || ':8000' AS worker,
  'model-' || worker % $models AS model, prompt_tokens, time AS sent_at, time AS ended_at,
  1.7e9 + time AS time, 1e0 AS weight, 'finished' AS outcome, 'cheapest' AS because,
  NULL AS set_aside, 'default' AS budget, if(u1 < 0.9, 'own', 'borrowed') AS curve,
  if(u1 < 0.97, 'live', 'suspect') AS trust, 0.05 / (1.0001 - u2) AS state_age,
  3e1 AS max_queue_wait, 3e1 AS allowed_queue_wait, NULL AS allowed_ttft, 9e-1 AS confidence,
  wait + own AS predicted_ttft, (wait + own) * 1.3 + 0.1 AS ttft_bound,
  wait AS predicted_queue_wait, wait * 1.3 + 0.05 AS queue_wait_bound,
  (wait * 20000)::BIGINT AS queued_tokens, wait::BIGINT AS queued_requests,
  greatest(0.01, wait * (0.9 + 0.2 * u3) + own * (0.95 + 0.1 * u4)
    + if(u5 < 0.02, own, 0)) AS ttft,
  16 AS block_size, prompt_tokens * 7 // 10 AS held, prompt_tokens * 6 // 10 AS predicted_cached,
  0 AS predicted_loaded, prompt_tokens * if(u5 < 0.02, 2, 6) // 10 AS cached_tokens,
  (u3 * 800)::BIGINT AS completion_tokens, NULL AS engine_said
FROM (
  SELECT *, prompt_tokens * 2e-5 AS own, greatest(0, -3 * ln(u6) - 3) AS wait FROM (
    SELECT i, (u0 * $workers)::BIGINT % $workers AS worker, i * $hours * 3600.0 / $rows AS time,
      (exp(6 + 5 * u7))::BIGINT AS prompt_tokens, u1, u2, u3, u4, u5, u6
    FROM (SELECT i, random() AS u0, random() AS u1, random() AS u2, random() AS u3, random() AS u4,
      random() AS u5, random() + 1e-9 AS u6, random() AS u7 FROM range($first, $last) t(i))
  )
)
"""
_REFUSED: Final = """
SELECT 'x' || i AS request, 1.7e9 + i * $hours * 3600.0 / $refused AS time, 'refused' AS kind,
  'would_wait_too_long' AS reason, 'model-' || i % $models AS model, 8000 AS prompt_tokens,
  3e0 AS allowed_queue_wait,
  json_object('candidates', list_transform(range($asked), lambda j: json_object('price',
    json_object('worker', 'llama-3.1-70b-4xh100-' || (i + j) % $workers || ':8000',
      'queue_wait', 3 + random() * 9, 'own_prefill', 0.16)))) AS decision
FROM range($refused) t(i)
"""
EACH: Final = 2_000_000
ONE_IN: Final = 12


def make(folder: Path, rows: int, form: Form = "parquet") -> None:
    """Write so many records, the refused ones among them, two millions a file."""
    import duckdb

    folder.mkdir(parents=True, exist_ok=True)
    refused = rows // ONE_IN
    served = rows - refused
    with duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")
        for first in range(0, served, EACH):
            numbers = {"first": first, "last": min(first + EACH, served), "rows": served}
            numbers |= {"workers": WORKERS, "models": MODELS, "hours": HOURS}
            _write(database, _OUTCOMES, folder / f"outcomes-{first:012d}.{form}", numbers)
        numbers = {"refused": refused, "models": MODELS, "hours": HOURS}
        numbers |= {"workers": WORKERS, "asked": ASKED}
        _write(database, _REFUSED, folder / f"decisions-0.{form}", numbers)


def _write(
    database: "DuckDBPyConnection", query: str, path: Path, numbers: Mapping[str, int]
) -> None:
    told = {"path": str(path), **numbers}
    form = "parquet, COMPRESSION zstd" if path.suffix == ".parquet" else "json"
    database.execute(f"COPY ({query}) TO $path (FORMAT {form})", told)
