"""Units and names that every layer shares.

Aliases, not NewTypes, for quantities: they document a signature without a cast at every sum.
Identities are NewTypes: a request's id handed in for a worker's is a mistake worth an error.
"""

from typing import NewType, TypeAlias

import numpy as np
import numpy.typing as npt

Seconds: TypeAlias = float
Tokens: TypeAlias = int
Blocks: TypeAlias = int

BlockKey: TypeAlias = int
"""One 64-bit key: names a whole prefix up to and including one block."""

Keys: TypeAlias = npt.NDArray[np.uint64]
"""Block keys of one prompt, parent first, shape (blocks,)."""

TokenIds: TypeAlias = npt.NDArray[np.uint32]
"""Token ids of one prompt, shape (tokens,)."""

WorkerId = NewType("WorkerId", str)
"""One engine scheduler: `host:port`, with `#rank` behind it where a port serves several."""

RequestId = NewType("RequestId", str)
