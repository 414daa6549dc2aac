"""`leadsman grade FOLDER …`: how good the predictions were that pickers recorded."""

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from leadsman_bench.seeing import tables
from leadsman_bench.seeing.grade import KEPT, Asked, grade
from leadsman_bench.seeing.records import NoRecordsError, open_records

WIDTH = 100


def main(argv: list[str]) -> int:
    """Grade what pickers recorded; exit status 1 where there is nothing to grade."""
    parser = argparse.ArgumentParser(prog="leadsman grade", description=main.__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="journals, of one or more pickers")
    parser.add_argument("--model", help="of this model alone")
    parser.add_argument("--last", type=float, metavar="HOURS", help="before the newest record")
    parser.add_argument("--worst", type=int, default=8, help="how many of the worst to show")
    parser.add_argument("--threads", type=int, help="cores that may be used; all by default")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args(argv)
    last = None if arguments.last is None else arguments.last * 3600.0
    asked = Asked(model=arguments.model, last=last, worst=arguments.worst)
    try:
        with open_records(arguments.folders, threads=arguments.threads, keep=KEPT) as database:
            report = grade(database, asked)
    except NoRecordsError as error:
        print(f"leadsman grade: {error}", file=sys.stderr)
        return 1
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    tables.show(report, console)
    if arguments.json is not None:
        told = msgspec.json.format(msgspec.json.encode(report), indent=1)
        arguments.json.write_bytes(told + b"\n")
    return 0
