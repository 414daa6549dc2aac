"""Which request is read or decided now, for log lines of those below who do not know it.

A tokenizer, a template, a library: what they log of a request is to be found by its id, and none of
them is handed one. So the id is in the context, which tasks and threads that are begun for the
request inherit; whoever writes the lines reads it there.
"""

from contextvars import ContextVar
from typing import Final

REQUEST: Final[ContextVar[str | None]] = ContextVar("request", default=None)
"""The id of the request; None where what is done is for no single one."""
