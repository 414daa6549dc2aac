"""Who may look: everybody, or whoever knows a token. For the metrics and the page alike.

A program sends it as a bearer's; a browser asks for a name and a password, of which the password is
the token. The file is read for each question, so a token that is changed counts at once.
"""

import base64
import binascii
import hmac
from pathlib import Path


def is_allowed(authorization: str | None, token: Path | None) -> bool:
    """Say whether a request with this `Authorization` may look. token: the file that has it."""
    if token is None:
        return True
    try:
        wanted = token.read_bytes().strip()
    except OSError:
        return False
    given = _given(authorization or "")
    return bool(wanted) and given is not None and hmac.compare_digest(given, wanted)


def _given(authorization: str) -> bytes | None:
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode()
    if scheme.lower() != "basic":
        return None
    try:
        _, colon, password = base64.b64decode(rest, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return password if colon else None
