"""The tokens of a scenario's requests, and names for their blocks: a number for each prefix."""

from typing import Any


class Texts:
    """All texts of one scenario. `looks_ahead`: tokens behind a block that its name covers too."""

    def __init__(self, requests: list[dict[str, Any]], size: int) -> None:
        self.looks_ahead = 0
        self._size = size
        self._told = {request["id"]: request for request in requests}
        self._prompts = {
            request["id"]: [f + n for f, length in request["prompt"] for n in range(1, length + 1)]
            for request in requests
        }
        self._names: dict[tuple[int | None, ...], int] = {}
        self._named: dict[str, list[int]] = {}

    def prompt(self, request: str) -> list[int]:
        """Return a request's prompt."""
        return self._prompts[request]

    def right(self, request: str, generated: int) -> int:
        """Say how many drafts are right in the step after so many output tokens."""
        accepts: list[int] = self._told[request]["accepts"]
        return accepts[generated % len(accepts)]

    def name(self, request: str, number: int) -> int:
        """Name the n-th block of a request, its output's too."""
        named = self._named.setdefault(request, [])
        while len(named) <= number:
            start = len(named) * self._size
            span = range(start, start + self._size + self.looks_ahead)
            whole = (named[-1] if named else None, *(self._token(request, at) for at in span))
            named.append(self._names.setdefault(whole, len(self._names)))
        return named[number]

    def _token(self, request: str, at: int) -> int:
        prompt, told = self._prompts[request], self._told[request]
        if at < len(prompt):
            return prompt[at]
        number = at - len(prompt) + 1
        return 0 if number == told["stops"] else int(told["answer"]) + number
