"""How long `leadsman grade` takes over millions of records, in either form, on at most two cores.

The question: is it something that one does before lunch or meanwhile. Ten million are Parquet, one
million lines, as ten would take 7 GB of disk: `python -m leadsman_bench.micro.grade 10000000` does
so many of lines alone. The records are made first, which is not measured (`seeing.made`).
`…_cpu_s` is time on the CPU of both cores together: where other work shares the machine, half of it
is the figure to look at.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from leadsman.units import Seconds
from leadsman_extproc.journal import Form

from leadsman_bench.seeing.grade import KEPT, Asked, grade
from leadsman_bench.seeing.made import make
from leadsman_bench.seeing.records import open_records

RECORDS: Final = 10_000_000
LINES: Final = 1_000_000
CORES: Final = 2


def measure() -> dict[str, float]:
    """Measure it; takes some two minutes, and 0.8 GB of disk."""
    whole, on_cpu = over(RECORDS, "parquet")
    of_lines, lines_cpu = over(LINES, "jsonl")
    return {
        "grade_10m_s": whole,
        "grade_10m_cpu_s": on_cpu,
        "grade_1m_lines_s": of_lines,
        "grade_1m_lines_cpu_s": lines_cpu,
    }


def over(records: int, form: Form) -> tuple[Seconds, Seconds]:
    """Grade so many records of one form; give how long it took, and on the CPU."""
    with tempfile.TemporaryDirectory(prefix="leadsman-grade-") as folder:
        make(Path(folder), records, form)
        began, on_cpu = time.perf_counter(), time.process_time()
        with open_records([Path(folder)], threads=CORES, keep=KEPT) as database:
            grade(database, Asked())
        return time.perf_counter() - began, time.process_time() - on_cpu


if __name__ == "__main__":
    asked = [int(count) for count in sys.argv[1:]]
    told = {f"lines_{count}_s, _cpu_s": over(count, "jsonl") for count in asked} or measure()
    print(json.dumps(told, indent=1))
