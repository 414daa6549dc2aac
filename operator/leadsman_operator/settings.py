"""What an operator is told, and how often it does what."""

from dataclasses import dataclass, field

from leadsman.units import Seconds

from leadsman_operator.endpoint import CollectorTiming
from leadsman_operator.informer import WatchTiming
from leadsman_operator.lease import LeaseTiming
from leadsman_operator.objects import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTiming:
    """gather: how long changes wait for company; status: how often statuses are written at most;
    settle: how long the port stays closed for engines that have not been asked yet;
    recall: how long pickers are waited for that know what no operator knows any more;
    learn: how often what was learned is kept.
    """

    gather: Seconds = 0.05
    status: Seconds = 3.0
    settle: Seconds = 3.0
    recall: Seconds = 2.0
    learn: Seconds = 30.0
    watch: WatchTiming = field(default_factory=WatchTiming)
    collect: CollectorTiming = field(default_factory=CollectorTiming)
    lease: LeaseTiming = field(default_factory=LeaseTiming)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """What the operator is told.

    namespaces: which it serves; none given: all. listen: where pickers follow the fleet stream.
    health: `host:port` of /healthz and /readyz. lease: the Lease that names the leader, or what the
    Leases of those that share are called; None: this is the only replica. lessons: the ConfigMap
    that keeps what was learned; None: nothing does. peers: where the other replicas listen, for
    one that waits to hear what the leader knows. name: this replica's own.
    """

    name: str
    namespaces: tuple[str, ...] = ()
    listen: str = "0.0.0.0:9100"
    health: str | None = None
    lease: Key | None = None
    lessons: Key | None = None
    peers: str | None = None
    secret: bytes = b""
    timing: OperatorTiming = field(default_factory=OperatorTiming)
