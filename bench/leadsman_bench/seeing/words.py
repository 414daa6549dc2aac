"""What clients and engines wrote, on its way to a terminal.

Names of requests, workers and models, and an engine's errors, are others' words: in them brackets
are no markup, and nothing may move the cursor, set a title or turn the direction of what follows.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def words(text: str, style: str = "") -> "Text":
    """Give a text that is printed as it reads."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else UNPRINTABLE for c in text), style=style)
