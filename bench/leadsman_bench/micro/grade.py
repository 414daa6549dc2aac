"""How long `leadsman grade` takes over ten million records, as Parquet, on at most two cores.

The question: is it something that one does before lunch or meanwhile. The records are made first,
which is not measured (`seeing.made`). `grade_10m_cpu_s` is time on the CPU of both cores together:
where other work shares the machine, half of it is the figure to look at.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Final

from leadsman_bench.seeing.grade import Asked, grade
from leadsman_bench.seeing.made import make
from leadsman_bench.seeing.records import open_records

RECORDS: Final = 10_000_000
CORES: Final = 2


def measure() -> dict[str, float]:
    """Measure it; takes some two minutes, and 0.7 GB of disk."""
    with tempfile.TemporaryDirectory(prefix="leadsman-grade-") as folder:
        make(Path(folder), RECORDS)
        return measured(Path(folder))


def measured(folder: Path) -> dict[str, float]:
    """Measure it over the records of a folder."""
    began, on_cpu = time.perf_counter(), time.process_time()
    with open_records([folder], threads=CORES) as database:
        grade(database, Asked())
    return {
        "grade_10m_s": time.perf_counter() - began,
        "grade_10m_cpu_s": time.process_time() - on_cpu,
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
