"""What is known of all workers of one model without a replay, as arrays that follow them.

A decision looks at every worker, and most have not changed since the last one. So each keeps its
row here until it says that something has happened to it.
"""

from collections.abc import Collection, Sequence

import numpy as np

from leadsman.candidates import Bools, Floats, Ints, own_prefill_floors
from leadsman.units import Seconds, Tokens, WorkerId
from leadsman.worker import WorkerState


class Standing:
    """The workers of one model, in a fixed order. Arrays have shape (workers,).

    by_size: block size → places of the workers that have it, and their names.
    """

    def __init__(self, states: Sequence[WorkerState]) -> None:
        self.states = list(states)
        self.by_size: dict[Tokens, tuple[Ints, tuple[WorkerId, ...]]] = {}
        sizes = [state.settings.block_size for state in states]
        for size in set(sizes):
            places = np.array([i for i, other in enumerate(sizes) if other == size])
            self.by_size[size] = places, tuple(states[i].worker for i in places)
        self._lengths = np.array([state.settings.max_model_len for state in states])
        self._rows = np.zeros((len(states), 7))

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
    ) -> tuple[Floats, Floats, Bools]:
        """Give each worker's floors of own prefill and of wait, and whether it was measured.

        A wait is no less than the last replay's, less the time since: a queue drains no faster.
        """
        self._refresh()
        rows = self._rows
        own = own_prefill_floors(rows, prompt_tokens, cached)
        wait = np.maximum(np.maximum(rows[:, 3], rows[:, 5] - (now - rows[:, 4])), 0.0)
        return own, wait, rows[:, 6] > 0

    def _refresh(self) -> None:
        changed = [i for i, state in enumerate(self.states) if state.has_changed]
        if changed:
            self._rows[changed] = [self.states[i].standing() for i in changed]
