"""The environment that chat templates are compiled and run in: transformers' own, name for name.

The question: what may a template do, and what do its names mean. Blocks take the line break behind
them and the spaces before them; JSON is written with Python's spaces and without escapes; the
clock is the engine's, in its local time. Sandboxed, since a template is a stranger's program.

Source: transformers 5.24 utils/chat_template_utils.py, _cached_compile_jinja_template.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(jinja2.ext.Extension):
    """The tag that marks what an assistant said; only training needs the mark.

    Its body is called as a macro's is: what is set within is not seen behind it.
    """

    tags = {"generation"}  # noqa: RUF012  (Jinja's own type)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """transformers' environment; a key of a plain dictionary is found without a failing getattr.

    Jinja asks for the attribute first and catches that there is none: 1 us a field, and a
    conversation has hundreds of them.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _METHODS:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that transformers compiles templates in.

    Nothing is escaped: the text goes to a tokenizer, never to a browser.
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  (templates pass it by position too)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)  # noqa: DTZ005  (engines write their local time)


_METHODS: Final = frozenset(dir(dict))
ENVIRONMENT: Final = _environment()
