"""How the run looks on a terminal, each figure beside its goal."""

from collections.abc import Mapping, Sequence
from typing import Final

from leadsman.units import Seconds
from leadsman_bench.report import percent, seconds
from rich import box
from rich.console import Console
from rich.table import Table

from engine.cells import Measured
from engine.curve import CurveFit

WITHIN, WITHIN_AROUND, CACHE_OFF = 0.95, 0.85, 0.005
COVERED: Final = 0.9
"""The confidence of the bound that a prediction gives."""
RIGHT_WITHIN: Final[Seconds] = 10.0


def meets_goals(cells: Sequence[Measured], recovered: Mapping[str, Seconds | None]) -> bool:
    """Say whether every goal was met."""
    return all(map(_meets, cells)) and all(_is_soon(after) for after in recovered.values())


def show(
    cells: Sequence[Measured],
    fits: Mapping[int, CurveFit],
    capacity: Mapping[int, float],
    recovered: Mapping[str, Seconds | None],
) -> None:
    """Print the tables."""
    console = Console(width=160)
    for slots, found in fits.items():
        console.print(
            f"{slots} slots: C(N) = {found.overhead:.4f} + {found.a:.3g} N + {found.b:.3g} N² s, "
            f"residuals of {found.samples}: median {percent(found.median_residual)}, largest "
            f"{percent(found.largest_residual)}; capacity {capacity[slots]:.2f} requests/s"
        )
    console.print(_table(cells))
    for name, after in recovered.items():
        mark = "[green]✓" if _is_soon(after) else "[red]✗"
        said = "never" if after is None else f"{after:.1f} s"
        console.print(f"right again after {name}: {said} {mark}")


def _table(cells: Sequence[Measured]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "requests", "graded", "0.1 s or 15 %", "median", "p90 error", "cache off"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("covered", "refused", "broken", "TTFT median", "p90", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for one in cells:
        table.add_row(
            one.name,
            *(str(one.requests), str(one.graded), percent(one.within_relative)),
            *(seconds(one.median_error), seconds(one.p90_error), percent(one.cache_mismatch)),
            *(percent(one.covered), str(sum(one.refused.values())), str(one.broken)),
            *(seconds(one.ttft_median), seconds(one.ttft_p90)),
            "[green]✓" if _meets(one) else "[red]✗",
        )
    return table


def _meets(one: Measured) -> bool:
    if one.within_relative is None or one.cache_mismatch is None or one.covered is None:
        return False
    if one.around:
        return one.within_relative >= WITHIN_AROUND and one.covered >= COVERED
    return one.within_relative >= WITHIN and one.cache_mismatch <= CACHE_OFF


def _is_soon(after: Seconds | None) -> bool:
    return after is not None and after <= RIGHT_WITHIN
