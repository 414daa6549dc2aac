"""What goes wrong between Leadsman and an engine, told apart by whose mistake it is."""

from leadsman.units import WorkerId


class EngineProtocolError(Exception):
    """An engine said something that cannot be understood: the peer's mistake, not ours."""

    def __init__(self, worker: WorkerId, problem: str) -> None:
        super().__init__(f"{worker}: {problem}")
        self.worker = worker
        self.problem = problem
