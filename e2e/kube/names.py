"""Names of services, for processes that look them up: a DNS server of a few lines on loopback.

It answers what it was told, with no time to live: whoever asks again hears what is so now. Source:
RFC 1035, 4.1.
"""

import socket
import threading
from contextlib import contextmanager

_TYPE_A, _TYPE_AAAA = 1, 28
_ANSWER, _NO_SUCH_NAME = 0x8400, 0x8403
_OPTIONS = 0x0100  # recursion desired, as asked


class Names:
    """The addresses of each name; may be changed while it is served."""

    def __init__(self, address):
        self.address = address
        self.known = {}

    def answer(self, asked):
        """Write the answer to one question."""
        name, end = _name(asked)
        kind = int.from_bytes(asked[end : end + 2], "big")
        found = self.known.get(name)
        addresses = found if kind == _TYPE_A and found else []
        flags = _NO_SUCH_NAME if found is None else _ANSWER
        counts = [1, len(addresses), 0, 0]
        head = asked[:2] + (flags | _OPTIONS).to_bytes(2, "big")
        head += b"".join(count.to_bytes(2, "big") for count in counts)
        told = b"\xc0\x0c\x00\x01\x00\x01" + bytes(4) + b"\x00\x04"
        rows = b"".join(told + socket.inet_aton(one) for one in addresses)
        return head + asked[12 : end + 4] + rows


def _name(asked):
    """Read the name that is asked for; gives it, and where its type is."""
    parts, place = [], 12
    while asked[place]:
        size = asked[place]
        parts.append(asked[place + 1 : place + 1 + size].decode().lower())
        place += 1 + size
    return ".".join(parts), place + 1


@contextmanager
def names():
    """Serve names until left."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.bind(("127.0.0.1", 0))
        held = Names(f"127.0.0.1:{wire.getsockname()[1]}")
        thread = threading.Thread(target=_serve, args=(wire, held))
        thread.start()
        try:
            yield held
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", wire.getsockname())
            thread.join()


def _serve(wire, held):
    while True:
        asked, who = wire.recvfrom(512)
        if not asked:
            return
        wire.sendto(held.answer(asked), who)
