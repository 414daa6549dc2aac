"""What is known of all workers of one model without a replay, as arrays that follow them.

A decision looks at every worker, and most have not changed since the last one. So each keeps its
row here until it says that something has happened to it. To walk over 256 workers only to ask them
would take longer than all the arithmetic.
"""

from collections.abc import Collection, Sequence

import numpy as np

from leadsman.candidates import Bools, Floats, Ints
from leadsman.mirror import ARRIVAL_DELAY, ARRIVAL_DELAY_PER_TOKEN
from leadsman.units import Seconds, Tokens, WorkerId
from leadsman.worker import WorkerState


class Standing:
    """The workers of one model, in a fixed order. Arrays have shape (workers,).

    by_size: block size → places of the workers that have it, and their names. changed: the workers
    whose rows are out of date. all_ready: whether each was ready at the beginning.
    """

    def __init__(self, states: Sequence[WorkerState]) -> None:
        self.states = list(states)
        self.changed: set[WorkerState] = set()
        self.all_ready = all(state.ready for state in states)
        self._places = {state: place for place, state in enumerate(states)}
        self.by_size: dict[Tokens, tuple[Ints, tuple[WorkerId, ...]]] = {}
        sizes = [state.settings.block_size for state in states]
        for size in sorted(set(sizes)):
            places = np.array([i for i, other in enumerate(sizes) if other == size])
            self.by_size[size] = places, tuple(states[i].worker for i in places)
        self._lengths = np.array([state.settings.max_model_len for state in states])
        rows = [state.standing() for state in states]
        self._columns = np.array(rows, dtype=np.float64).reshape(-1, 8).T

    def able(self, prompt_tokens: Tokens, endpoints: Collection[str] | None) -> Ints | None:
        """Find who may serve a prompt; None: all.

        Those whose context holds it, or all where none does, so that one of them says so.
        """
        able: Bools = self._lengths > prompt_tokens
        if endpoints is not None:
            listed = np.array([state.endpoint in endpoints for state in self.states], dtype=bool)
            able = listed & able if (listed & able).any() else listed
        elif able.all() or not able.any():
            return None
        return np.flatnonzero(able)

    def floors(
        self, prompt_tokens: Tokens, cached: Ints, now: Seconds
    ) -> tuple[Floats, Floats, Bools, Floats]:
        """Give the floors of each worker's own prefill and wait, whether it was measured, and since
        when nobody has asked it.

        No prompt takes less than its arrival, its tokens and as many steps as hold them. A wait is
        no less than the last replay's, less the time since: a queue drains no faster. What a
        request waits while it is on its way counts once.
        """
        self._refresh()
        s, a, half_b, t0, budget, busy_until, is_measured, idle_since = self._columns
        arrival = ARRIVAL_DELAY + ARRIVAL_DELAY_PER_TOKEN * prompt_tokens
        new = prompt_tokens - cached
        own: Floats = new * (a + half_b * (prompt_tokens + cached))
        own += arrival + s + t0 * np.ceil(new / budget)
        wait: Floats = np.maximum(busy_until - (arrival + now), 0.0)
        return own, wait, is_measured > 0, idle_since

    def _refresh(self) -> None:
        for state in self.changed:
            self._columns[:, self._places[state]] = state.standing()
        self.changed.clear()
