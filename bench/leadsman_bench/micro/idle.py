"""What a picker costs that has nothing to do: 64 endpoints are polled, and listened to.

The question: the share of one core that `leadsman serve` takes, collectors included, once it knows
64 idle engines, each with its pages and a socket of cache events. An idle engine is asked for its
load every two seconds and for its health every five; its socket is silent.
"""

import tempfile
import time
from pathlib import Path
from typing import Final

from leadsman.units import Seconds

from leadsman_bench.micro.extproc import fleet_file
from leadsman_bench.processes import children, cpu_seconds, leadsman, module

ENDPOINTS: Final = 64
SETTLE: Final[Seconds] = 8.0
WINDOW: Final[Seconds] = 20.0


def measure() -> dict[str, float]:
    """Measure the share; takes half a minute."""
    with (
        tempfile.TemporaryDirectory(prefix="leadsman-micro-") as name,
        children(Path(name)) as held,
    ):
        folder = Path(name)
        held.start("engines", module("leadsman_bench.micro._upstream", str(ENDPOINTS), "events"))
        ports = held.told("engines")["ports"]
        (folder / "fleet.yaml").write_text(fleet_file(ports, folder, folder / "journal"))
        held.start("picker", leadsman("serve", "--config", str(folder / "fleet.yaml")))
        held.told("picker")
        picker = held.pid("picker")
        time.sleep(SETTLE)
        before, began = cpu_seconds(picker), time.monotonic()
        time.sleep(WINDOW)
        share = (cpu_seconds(picker) - before) / (time.monotonic() - began)
    return {f"idle_cpu_{ENDPOINTS}_endpoints": share}
