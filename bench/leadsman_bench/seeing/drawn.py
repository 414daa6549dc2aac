"""Points as a fleet of eight would leave them: to fill a page with."""

from collections.abc import Iterator
from random import Random

from leadsman_fleet.page.shown import Point


def drawn(number: int, *, seed: int = 1) -> Iterator[Point]:
    """Draw points: waits over three decades, one cache estimate in fifty wrong."""
    rng = Random(seed)
    for i in range(number):
        predicted = 10 ** rng.uniform(-1.5, 1.5)
        yield Point(
            request=f"r{i}",
            at=1.7e9 + i,
            worker=f"w{i % 8}",
            predicted=predicted,
            actual=predicted * rng.uniform(0.9, 1.2),
            bound=30.0,
            predicted_wait=0.6 * predicted,
            wait=0.6 * predicted * rng.uniform(0.9, 1.2),
            wait_bound=20.0,
            matched=rng.random() > 0.02,
        )
