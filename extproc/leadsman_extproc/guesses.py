"""Prompts whose tokens only an engine can count, and what its answers teach of the next ones.

Three things are guessed. How many bytes of body a token takes, of a model without a tokenizer here.
How many tokens an image, a sound or a video becomes, beside text that is counted. And how long the
conversation is that an engine has kept under a response's name: as long as what that response took
and gave. Each is learned from the usage that answers report; the first two are means by model, in
which the last some twenty answers weigh most.

It ignores how large an image is: processors differ, and traffic of one model is mostly alike.
Responses that another picker has seen are not known, and one that is not is taken for empty.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import msgspec
from leadsman.units import Tokens

FIRST_BYTES_PER_TOKEN: Final = 4.0
FIRST_TOKENS_PER_MEDIUM: Final = 1000.0
"""A picture of a megapixel takes some 1,000 to 1,300 in Qwen-VL's and Llama's families."""
MOST_RESPONSES: Final = 10_000
"""Whose length is remembered, some 200 bytes each."""
_WEIGHT: Final = 0.05
"""How much one answer's usage moves a mean, once there were many."""


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """What an estimated number of tokens is made of.

    text_size: bytes of body that became all of them; 0 where some are no text. media: items beside
    `text_tokens`, which were counted; 0 where these were not.
    """

    text_size: int = 0
    media: int = 0
    text_tokens: Tokens = 0


NOTHING: Final = Guess()


@dataclass(slots=True)
class Mean:
    """A mean that begins with a declared value, which counts as one, and forgets slowly."""

    value: float
    seen: int = 1

    def take(self, one: float) -> None:
        """Take one more in."""
        self.seen += 1
        self.value += max(_WEIGHT, 1 / self.seen) * (one - self.value)


@dataclass(slots=True)
class Guesses:
    """What is known by now of each model, and of the last responses."""

    _bytes_per_token: dict[str, Mean] = field(default_factory=dict)
    _per_medium: dict[str, Mean] = field(default_factory=dict)
    _responses: OrderedDict[str, Tokens] = field(default_factory=OrderedDict)

    def text(self, model: str, size: int) -> Tokens:
        """Estimate the tokens of a body of so many bytes."""
        mean = self._bytes_per_token.get(model)
        ratio = FIRST_BYTES_PER_TOKEN if mean is None else mean.value
        return max(1, round(size / ratio))

    def media(self, model: str, items: int) -> Tokens:
        """Estimate the tokens of so many images, sounds and videos."""
        mean = self._per_medium.get(model)
        return round(items * (FIRST_TOKENS_PER_MEDIUM if mean is None else mean.value))

    def before(self, response: object) -> Tokens:
        """Give how long the conversation is up to a response, named as a body does; 0: unknown."""
        if not isinstance(response, str) or response not in self._responses:
            return 0
        self._responses.move_to_end(response)
        return self._responses[response]

    def learn(self, model: str, guess: Guess, prompt_tokens: Tokens) -> None:
        """Take from an answer's usage what a guess should have been."""
        if guess.text_size > 0 and prompt_tokens > 0:
            first = Mean(FIRST_BYTES_PER_TOKEN)
            self._bytes_per_token.setdefault(model, first).take(guess.text_size / prompt_tokens)
        beside = prompt_tokens - guess.text_tokens
        if guess.media and beside >= 0:
            first = Mean(FIRST_TOKENS_PER_MEDIUM)
            self._per_medium.setdefault(model, first).take(beside / guess.media)

    def remember(self, response: str, tokens: Tokens) -> None:
        """Remember how long the conversation is up to a response."""
        self._responses[response] = tokens
        self._responses.move_to_end(response)
        while len(self._responses) > MOST_RESPONSES:
            self._responses.popitem(last=False)
