"""Records that tests of the fleet's carriers tell."""

import numpy as np
from leadsman.records import Ended, Granted, Outcome, WorkerSeen

from tests.settings import SETTINGS


def seen(worker):
    return WorkerSeen(worker=worker, endpoint=worker, settings=SETTINGS)


def granted(request, *, worker="a", at=1.0):
    return Granted(
        worker=worker,
        request=request,
        at=at,
        prompt_tokens=9,
        keys=np.arange(3, dtype=np.uint64),
        max_tokens=None,
        priority=0,
        predicted_ttft=None,
    )


def ended(request, *, worker="a"):
    return Ended(worker=worker, request=request, at=2.0, outcome=Outcome.FINISHED)
