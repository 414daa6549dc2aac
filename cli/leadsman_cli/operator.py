"""`leadsman operator`: the operator as a process, until it is told to stop."""

import argparse
import asyncio
import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from leadsman_extproc.garbage import settle
from leadsman_operator.kube import ApiError, api
from leadsman_operator.objects import Key
from leadsman_operator.operator import Operator
from leadsman_operator.outlets import SharedOutlet
from leadsman_operator.settings import OperatorSettings

from leadsman_cli.logs import log_as_json
from leadsman_cli.overview import Overview, show
from leadsman_cli.signals import ToldToStop
from leadsman_cli.states import redis_log

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the command; gives the exit status."""
    arguments = _parser().parse_args(argv)
    log_as_json(arguments.log_level)
    settings = OperatorSettings(
        name=f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        namespaces=tuple(arguments.namespace),
        listen=arguments.listen,
        health=arguments.health,
        lease=arguments.lease,
        lessons=arguments.lessons,
        peers=arguments.peers,
        secret=os.environ.get("LEADSMAN_SECRET", "").encode(),
    )
    try:
        uvloop.run(_run(settings, arguments))
    except (ApiError, OSError) as error:
        print(f"leadsman operator: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leadsman operator",
        description="Follows the cluster's InferencePools. The secret that names block keys is"
        " taken from LEADSMAN_SECRET, and must be the pickers'.",
    )
    add = parser.add_argument
    add("--namespace", action="append", default=[], help="serve this one; again for more; or all")
    add("--listen", default="0.0.0.0:9100", help="where pickers follow the fleet stream")
    add("--peers", metavar="ADDRESS", help="all replicas' --listen: a standby follows the leader's")
    add("--health", default="0.0.0.0:8081", help="where /healthz and /readyz are")
    add("--lease", type=_key, help="NAMESPACE/NAME: needed where there are several replicas")
    add(
        "--redis",
        metavar="URL",
        default=os.environ.get("LEADSMAN_REDIS_URL"),
        help="carry fleet state by this Redis or Valkey, and share the collecting; nothing listens"
        " then. Default: LEADSMAN_REDIS_URL",
    )
    add("--lessons", type=_key, help="NAMESPACE/NAME of a ConfigMap to keep what is learned in")
    add("--page", metavar="HOST:PORT", help="serve the live page of all pools there")
    add("--token", type=Path, help="file with what whoever looks at the page has to know")
    add("--kubeconfig", help="else the pod's service account, or the user's own")
    add("--log-level", default="info", choices=["debug", "info", "warning"])
    return parser


def _key(text: str) -> Key:
    namespace, _, name = text.partition("/")
    if not (namespace and name):
        raise argparse.ArgumentTypeError(f"NAMESPACE/NAME, not {text!r}")
    return Key(namespace, name)


def _opener(url: str | None) -> Callable[[str], SharedOutlet] | None:
    """Give what opens the logs at a URL; None where there is none. Raises OSError."""
    if not url:
        return None
    redis_log(url, "")
    from leadsman_operator.redis_outlet import RedisOutlet

    return lambda pool: RedisOutlet(redis_log(url, pool))


async def _run(settings: OperatorSettings, arguments: argparse.Namespace) -> None:
    told = ToldToStop()
    async with api(arguments.kubeconfig) as server, AsyncExitStack() as stack:
        process = Operator(
            api=server,
            settings=settings,
            open_log=_opener(arguments.redis),
            on_listen=lambda _port: settle(),
        )
        if arguments.page is not None:
            here = f"127.0.0.1:{settings.listen.rpartition(':')[2]}"
            overview = Overview(
                arguments.redis or settings.peers or here,
                lambda: [str(key) for key in process.watching.world().pools],
            )
            await show(stack, overview, arguments.page, arguments.token)
        settle()
        operator = asyncio.create_task(process.run())
        try:
            await told.wait(operator)
        finally:
            operator.cancel()
            await asyncio.gather(operator, return_exceptions=True)
    log.info("stopped")
