"""`leadsman conformance --target HOST:PORT`: put an endpoint picker to the whole script."""

import argparse
import asyncio
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
from cryptography import x509

from leadsman_bench.conformance.checks import CHECKS
from leadsman_bench.conformance.exchange import Breach
from leadsman_bench.conformance.script import Target

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one check went; `problem` is None where it passed."""

    check: str
    is_required: bool
    problem: str | None


async def put_to(target: Target) -> list[Verdict]:
    """Run every check, one after the other."""
    verdicts = []
    for check in CHECKS:
        problem = None
        try:
            await check.run(target)
        except Breach as breach:
            problem = str(breach)
        verdicts.append(
            Verdict(check=check.sentence, is_required=check.is_required, problem=problem)
        )
    return verdicts


def main(argv: list[str]) -> int:
    """Run `leadsman conformance`; 1 where a required check fails."""
    arguments = _parser().parse_args(argv)
    verdicts = asyncio.run(_run(arguments))
    _print(verdicts)
    if arguments.json:
        arguments.json.write_bytes(
            msgspec.json.format(msgspec.json.encode(verdicts), indent=1) + b"\n"
        )
    return int(any(one.problem and one.is_required for one in verdicts))


async def _run(arguments: argparse.Namespace) -> list[Verdict]:
    async with _channel(arguments) as channel:
        return await put_to(
            Target(channel=channel, model=arguments.model, patience=arguments.patience)
        )


def _channel(arguments: argparse.Namespace) -> Any:
    shown, name = None, arguments.name
    if arguments.insecure:
        host, _, port = arguments.target.rpartition(":")
        shown = ssl.get_server_certificate((host.strip("[]"), int(port))).encode()
        name = name or _name_in(shown)
    elif arguments.ca is not None:
        shown = arguments.ca.read_bytes()
    if shown is None:
        return grpc.aio.insecure_channel(arguments.target, options=UNLIMITED)
    trusted = grpc.ssl_channel_credentials(shown)
    named = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.aio.secure_channel(arguments.target, trusted, options=[*UNLIMITED, *named])


def _name_in(certificate: bytes) -> str | None:
    """Give the first name that a certificate is for: gRPC checks it whatever is trusted."""
    held = x509.load_pem_x509_certificate(certificate)
    try:
        names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    return next(iter(names.get_values_for_type(x509.DNSName)), None)


def _print(verdicts: Sequence[Verdict]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for one in verdicts:
        mark = "[green]pass[/]" if one.problem is None else "[red]FAIL[/]"
        if one.problem is not None and not one.is_required:
            mark = "[yellow]no  [/]"
        console.print(f"{mark}  {escape(one.check)}")
        if one.problem is not None:
            console.print(f"      [dim]{escape(one.problem)}[/]")
    required = [one for one in verdicts if one.is_required]
    passed = sum(one.problem is None for one in required)
    optional = sum(one.problem is None for one in verdicts) - passed
    console.print(
        f"{passed} of {len(required)} required checks passed, "
        f"{optional} of {len(verdicts) - len(required)} optional ones"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leadsman conformance",
        description="Put an endpoint picker to a script of ext_proc exchanges.",
    )
    parser.add_argument("--target", required=True, help="HOST:PORT of its ext_proc server")
    parser.add_argument("--model", required=True, help="a model that its pool serves")
    parser.add_argument("--ca", type=Path, help="certificate to trust; without: no TLS")
    parser.add_argument(
        "--insecure", action="store_true", help="TLS, and trust whatever certificate it shows"
    )
    parser.add_argument("--name", help="the name in its certificate, where it is not HOST")
    parser.add_argument(
        "--patience", type=float, default=5.0, help="seconds to wait for an answer (default 5)"
    )
    parser.add_argument("--json", type=Path, help="write the verdicts there")
    return parser
