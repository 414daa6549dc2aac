"""`leadsman parity`: are a model's tokens here those of a running engine.

Asks the engine about the probes that `leadsman serve` would ask it about, and about bodies of chat
requests in files, and shows where the tokens begin to differ, with the words around.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import tokenizers
from leadsman.units import TokenIds
from leadsman_extproc.models import ServedModel, load_model
from leadsman_extproc.own_tokens import OwnTokens
from leadsman_extproc.parity import first_difference
from leadsman_extproc.probes import probes

from leadsman_cli.tokenize import EngineTokenizer

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0)
_AROUND: Final = 8


def main(argv: Sequence[str]) -> int:
    """Run the command; gives 1 where tokens differ, 2 where the model cannot be read."""
    parser = argparse.ArgumentParser(prog="leadsman parity", description=__doc__)
    parser.add_argument("--engine", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", required=True, help="as the engine serves it")
    parser.add_argument("--folder", type=Path, required=True, help="tokenizer.json and its like")
    parser.add_argument("--chat-template", type=Path, help="in place of the folder's own")
    parser.add_argument("bodies", type=Path, nargs="*", help="bodies of chat requests")
    arguments = parser.parse_args(argv)
    try:
        template = arguments.chat_template and arguments.chat_template.read_text()
        text = load_model(arguments.folder, chat_template=template)
        chats = [("/v1/chat/completions", path.read_bytes()) for path in arguments.bodies]
    except (OSError, ValueError) as error:
        print(f"leadsman parity: {error}")
        return 2
    own = OwnTokens([ServedModel(name=arguments.model, text=text)])
    asked = [*probes(arguments.model), *chats]
    words = tokenizers.Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    said = asyncio.run(_compare(own, arguments.engine, asked))
    for ours, theirs in said:
        print(_told(words, ours, theirs))
    return 1 if any(_differ(ours, theirs) for ours, theirs in said) else 0


async def _compare(
    own: OwnTokens, engine: str, asked: Sequence[tuple[str, bytes]]
) -> list[tuple[TokenIds | None, TokenIds | None]]:
    """Give our tokens and the engine's of each body; None is no answer."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
        tokenizer = EngineTokenizer(http=http, ready=lambda _: [engine])
        said = []
        for path, body in asked:
            question = own.question(path, body)
            theirs = None if question is None else await tokenizer.ask(engine, question)
            said.append((own.tokens(path, body), theirs))
        return said


def _differ(ours: TokenIds | None, theirs: TokenIds | None) -> bool:
    return ours is not None and theirs is not None and not np.array_equal(ours, theirs)


def _told(words: tokenizers.Tokenizer, ours: TokenIds | None, theirs: TokenIds | None) -> str:
    if ours is None:
        return "not ours      the template or the body has no tokens here"
    if theirs is None:
        return "unanswered    the engine did not say its tokens"
    at = first_difference(ours, theirs)
    if at is None:
        return f"alike         {len(ours)} tokens"
    around = slice(max(0, at - _AROUND), at + _AROUND)
    shown = [
        f"\n  {who:8}{ids[around].tolist()}\n          "
        f"{words.decode(ids[around].tolist(), skip_special_tokens=False)!r}"
        for who, ids in (("ours", ours), ("engine", theirs))
    ]
    return f"unlike        at token {at} of {len(ours)}, the engine's {len(theirs)}" + "".join(
        shown
    )
