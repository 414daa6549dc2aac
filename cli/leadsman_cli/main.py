"""The command line: `leadsman COMMAND …`. Each command imports only what it runs."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Final, TypeAlias

Command: TypeAlias = Callable[[list[str]], int]


def _demo(argv: list[str]) -> int:
    """Show the main job on this machine: real Envoy, simulated engines, a real trace."""
    from leadsman_bench import demo

    return demo.main(argv)


def _serve(argv: list[str]) -> int:
    """Serve a fleet that a file describes, in one process: --config fleet.yaml."""
    # gRPC's C part reads this as it is loaded; what it says of closed streams is no line of JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from leadsman_cli import serve

    return serve.main(argv)


def _parity(argv: list[str]) -> int:
    """Compare a model's tokens with a running engine's, and show where they differ."""
    from leadsman_cli import parity

    return parity.main(argv)


def _extproc(argv: list[str]) -> int:
    """Serve one picker of a fleet that an operator follows: --fleet host:port --pool NS/NAME."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from leadsman_cli import extproc

    return extproc.main(argv)


def _operator(argv: list[str]) -> int:
    """Follow the pools of a Kubernetes cluster, and serve the fleet stream to pickers."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from leadsman_cli import operator
    except ModuleNotFoundError as error:
        print(
            f"leadsman operator: no module {error.name!r}: pip install 'leadsman[operator]'",
            file=sys.stderr,
        )
        return 2
    return operator.main(argv)


def _simulate_engine(argv: list[str]) -> int:
    """Run a simulated engine that speaks as vLLM does."""
    from leadsman_engines.simulated import command

    return command.main(argv)


def _bench(argv: list[str]) -> int:
    """Judge predictions and speed: simulate, recorded, micro."""
    from leadsman_bench import command

    return command.main(argv)


def _doctor(argv: list[str]) -> int:
    """Look at engines and gateway, and say what to change: --config fleet.yaml."""
    from leadsman_cli.doctor import command

    return command.main(argv)


def _looking(name: str, module: str, argv: list[str]) -> int:
    """Run a command that reads records; says what to install where it cannot be."""
    try:
        command = import_module(f"leadsman_bench.seeing.{module}")
        return int(command.main(argv))
    except ModuleNotFoundError as error:
        print(
            f"leadsman {name}: no module {error.name!r}: pip install 'leadsman[grade]'",
            file=sys.stderr,
        )
        return 2


def _grade(argv: list[str]) -> int:
    """Say how good the predictions were that pickers recorded: FOLDER ..."""
    return _looking("grade", "grade_command", argv)


def _explain(argv: list[str]) -> int:
    """Say in a screen why a request was sent where it was, or refused: REQUEST FOLDER ..."""
    return _looking("explain", "explain", argv)


def _replay(argv: list[str]) -> int:
    """Decide again what pickers decided, by today's code or another budget: FOLDER ..."""
    return _looking("replay", "replay", argv)


def _conformance(argv: list[str]) -> int:
    """Put an endpoint picker to a script of ext_proc exchanges: --target HOST:PORT."""
    from leadsman_bench.conformance import command

    return command.main(argv)


def _version(_argv: list[str]) -> int:
    """Say which version this is."""
    print(version("leadsman"))
    return 0


COMMANDS: Final[dict[str, Command]] = {
    "demo": _demo,
    "serve": _serve,
    "parity": _parity,
    "extproc": _extproc,
    "operator": _operator,
    "simulate-engine": _simulate_engine,
    "doctor": _doctor,
    "grade": _grade,
    "explain": _explain,
    "replay": _replay,
    "bench": _bench,
    "conformance": _conformance,
    "version": _version,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status, 2 where there is no such command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(_usage())
        return 0
    command = COMMANDS.get(name)
    if command is None:
        print(f"leadsman: no command {name!r}\n\n{_usage()}", file=sys.stderr)
        return 2
    return command(arguments[1:])


def _usage() -> str:
    said = {name: (command.__doc__ or "").splitlines()[0] for name, command in COMMANDS.items()}
    lines = [f"  {name:<17}{what}" for name, what in said.items()]
    return "\n".join(["usage: leadsman COMMAND [OPTIONS]", "", *lines])
