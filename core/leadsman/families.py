"""Which earlier request a request goes on from: turns of one conversation have answers alike.

A prompt that goes on from another holds that other's last full block, near the end of what is
cached of it: behind it come only the blocks of the other's answer. So the family of a request is
that of the prompt whose last block is found there, or a new one. No session id is needed, and a
system prompt that everybody shares makes no family.
"""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from leadsman.request import Request
from leadsman.units import BlockKey

MOST_PROMPTS = 65_536
"""Prompts remembered by their last block; the oldest is forgotten first."""

ANSWER_BLOCKS = 128
"""Blocks of an answer that may lie between two prompts: 2,048 tokens where a block has 16."""


class Families:
    """Last blocks of prompts → the family that each started or belongs to."""

    def __init__(self) -> None:
        self._by_end: OrderedDict[BlockKey, BlockKey] = OrderedDict()

    def of(self, request: Request, cached: npt.NDArray[np.int64]) -> BlockKey | None:
        """Give the request's family, and remember its prompt for the next turn.

        cached: prompt tokens that each worker holds of it. None where the prompt has no full block.
        """
        size, keys = next(iter(request.keys.items()), (1, None))
        if keys is None or not len(keys):
            return None
        depth = min(len(keys), -(-int(cached.max(initial=0)) // size) + 1)
        recent = keys[max(0, depth - ANSWER_BLOCKS) : depth].tolist()
        end = int(keys[-1])
        family = next(filter(None, map(self._by_end.get, reversed(recent))), end)
        self._by_end[end] = family
        if len(self._by_end) > MOST_PROMPTS:
            self._by_end.popitem(last=False)
        return family
