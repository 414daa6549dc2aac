"""What a chat template finds when it runs: transformers' sandbox, its filters and its functions.

Source: transformers utils/chat_template_utils.py.
"""

import json
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationBlock(Extension):
    """`{% generation %}` marks what a model said, for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> Node | list[Node]:
        """Keep what is inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that chat templates run in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: object, ensure_ascii: bool = False, **how: Any) -> str:  # noqa: FBT001, FBT002
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now(tz=UTC).astimezone().strftime(form)
