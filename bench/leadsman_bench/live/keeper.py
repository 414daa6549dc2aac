"""The process that keeps a deployment up: `python -m leadsman_bench.live.keeper FOLDER …`."""

import argparse
import sys
from pathlib import Path

from leadsman_bench.demo_plan import ENGINES
from leadsman_bench.live.deployment import Deployment, keep
from leadsman_bench.scenario import MODEL


def parser(prog: str) -> argparse.ArgumentParser:
    """Give what `up` and its keeper take alike."""
    made = argparse.ArgumentParser(prog=prog, description="Bring engines and Envoy up.")
    most = len(ENGINES)
    made.add_argument("--engines", type=int, default=2, help=f"simulated engines, 1 to {most}")
    made.add_argument("--endpoint", action="append", default=[], help="URL of an engine that runs")
    made.add_argument("--model", default=MODEL, help="the served model's name")
    made.add_argument("--tokenizer", help="folder of the model's tokenizer")
    made.add_argument("--chat-template", help="file of the model's chat template")
    return made


def base(arguments: argparse.Namespace) -> tuple[Deployment, int]:
    """Give what is asked for: what is given of a deployment, and how many engines to simulate.

    Raises ValueError where that cannot be.
    """
    if arguments.endpoint and arguments.tokenizer is None:
        raise ValueError(
            "--endpoint needs --tokenizer: prompts are counted as its model counts them"
        )
    if not 1 <= arguments.engines <= len(ENGINES):
        raise ValueError(f"--engines {arguments.engines}: there are 1 to {len(ENGINES)}")
    tokenizer, template = arguments.tokenizer, arguments.chat_template
    if tokenizer is None:
        from leadsman_bench.demo import shipped_template, shipped_tokenizer

        tokenizer, template = str(shipped_tokenizer()), str(shipped_template())
    made = Deployment(
        keeper=0,
        url="",
        picker="",
        engines=arguments.endpoint,
        names=arguments.endpoint,
        model=arguments.model,
        tokenizer=tokenizer,
        chat_template=template,
        simulated=not arguments.endpoint,
    )
    return made, 0 if arguments.endpoint else arguments.engines


def main(argv: list[str]) -> int:
    """Keep a deployment up."""
    made = parser("leadsman_bench.live.keeper")
    made.add_argument("folder", type=Path)
    arguments = made.parse_args(argv)
    given, simulated = base(arguments)
    keep(arguments.folder, given, simulated_engines=simulated)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
