"""The gRPC server frame by frame, against a peer that writes its own."""

import gc
import struct

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc.http2 import frames
from leadsman_extproc.http2.calls import Status
from leadsman_extproc.http2.connection import Connection
from leadsman_extproc.http2.frames import ErrorCode
from leadsman_extproc.http2.stream import WINDOW

PATH = "/test.Service/Echo"
MESSAGES = st.lists(st.binary(max_size=300), max_size=5)


class Echo:
    """Gives every message back; some are wishes."""

    def __init__(self, call):
        self.call, self.seen, self.goodbyes = call, [], 0

    def message(self, raw):
        self.seen.append(raw)
        if raw == b"fail":
            raise RuntimeError("this handler fails")
        self.call.send([raw])
        if raw == b"finish":
            self.call.finish()

    def whole(self):
        self.call.finish()

    def gone(self):
        self.goodbyes += 1


class Transport:
    """Keeps what is written; a real one's other ways are noted."""

    def __init__(self):
        self.written, self.is_closed = bytearray(), False

    def write(self, data):
        self.written += data

    def writelines(self, pieces):
        for piece in pieces:
            self.written += piece

    def close(self):
        self.is_closed = True

    def get_extra_info(self, name):
        return None

    def set_write_buffer_limits(self, high):
        pass

    def pause_reading(self):
        pass

    resume_reading = pause_reading


class Peer:
    """A client that writes its frames by hand and reads the server's."""

    def __init__(self, *, preface=frames.PREFACE, window=None):
        self.transport, self.receivers, self.those_open = Transport(), [], set()
        self.connection = Connection({PATH: self._open}, self.those_open)
        self.connection.connection_made(self.transport)
        self._headers, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._at = 0
        settings = {} if window is None else {frames.INITIAL_WINDOW_SIZE: window}
        self.send(preface + frames.settings(settings))
        self.told()

    def _open(self, call):
        self.receivers.append(Echo(call))
        return self.receivers[-1]

    def send(self, data):
        self.connection.data_received(bytes(data))

    def headers(self, stream, path=PATH, *, flags=frames.END_HEADERS):
        block = self._headers.encode([(":method", "POST"), (":path", path), ("x-any", "1")])
        return frames.head(len(block), frames.HEADERS, flags, stream) + block

    def told(self):
        """Return the frames that came since the last time: (kind, flags, stream, payload)."""
        found, data = [], bytes(self.transport.written)
        while self._at < len(data):
            word, flags, stream = frames.HEAD.unpack_from(data, self._at)
            start = self._at + frames.HEAD_SIZE
            self._at = start + (word >> 8)
            found.append((word & 0xFF, flags, stream, data[start : self._at]))
        return found

    def body(self, told, stream=1):
        return b"".join(p for kind, _, s, p in told if (kind, s) == (frames.DATA, stream))

    def status(self, told, stream=1):
        """Return the call's status, None where it has none yet."""
        for kind, _, number, payload in told:
            if (kind, number) == (frames.HEADERS, stream):
                fields = dict(self._decoder.decode(payload))
                if "grpc-status" in fields:
                    return int(fields["grpc-status"])
        return None


def data(stream, *messages, flags=0):
    payload = b"".join(struct.pack(">BI", 0, len(one)) + one for one in messages)
    return frames.head(len(payload), frames.DATA, flags, stream) + payload


def kinds(told):
    return [kind for kind, *_ in told]


def goaway(told):
    return [ErrorCode(int.from_bytes(p[4:8])) for kind, _, _, p in told if kind == frames.GOAWAY]


@given(MESSAGES, st.lists(st.integers(1, 40), max_size=30))
def test_frames_may_come_in_any_pieces(messages, cuts):
    whole, pieced = Peer(), Peer()
    sent = whole.headers(1) + b"".join(data(1, one) for one in messages)
    sent += data(1, *messages, flags=frames.END_STREAM)
    whole.send(sent)
    for cut in cuts:
        pieced.send(sent[:cut])
        sent = sent[cut:]
    pieced.send(sent)
    told = whole.told()

    assert whole.receivers[0].seen == pieced.receivers[0].seen == messages * 2
    assert whole.body(told) == pieced.body(pieced.told())
    assert whole.status(told) == Status.OK


@given(MESSAGES, st.integers(0, 50), st.lists(st.integers(1, 60), max_size=60))
def test_no_more_is_sent_than_the_peer_takes_and_all_of_it_before_the_end(messages, window, more):
    peer = Peer(window=window)
    peer.send(peer.headers(1) + data(1, *messages, flags=frames.END_STREAM))
    expected = b"".join(struct.pack(">BI", 0, len(one)) + one for one in messages)

    told = peer.told()
    got, allowed, status = peer.body(told), window, peer.status(told)
    for grant in [*more, 10_000]:
        assert len(got) <= allowed
        assert (status is not None) == (len(got) == len(expected))
        peer.send(frames.window_update(1, grant))
        allowed += grant
        told = peer.told()
        got += peer.body(told)
        status = peer.status(told) if status is None else status

    assert (got, status) == (expected, Status.OK)
    assert peer.receivers[0].goodbyes == 1
    assert peer.connection.open_calls == 0


def test_all_streams_share_what_the_peer_takes_of_the_connection():
    peer = Peer(window=10**6)
    peer.send(peer.headers(1) + peer.headers(3) + data(1, b"a" * 16_000))
    peer.send(data(1, b"b" * 16_000) + data(1, b"c" * 16_000) + data(1, b"d" * 16_000))
    peer.send(data(3, b"e" * 16_000))
    before = peer.told()

    peer.send(frames.window_update(0, 10**6))
    after = peer.told()

    assert len(peer.body(before)) + len(peer.body(before, 3)) == frames.FIRST_WINDOW
    assert len(peer.body(before)) + len(peer.body(after)) == 4 * 16_005
    assert len(peer.body(before, 3)) + len(peer.body(after, 3)) == 16_005


def test_a_window_that_shrinks_below_nothing_holds_everything_back():
    peer = Peer(window=100)
    peer.send(peer.headers(1) + data(1, b"a" * 80))
    peer.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))
    peer.told()

    peer.send(data(1, b"b" * 20))
    held = peer.body(peer.told())
    peer.send(frames.window_update(1, 200))

    assert held == b""
    assert peer.body(peer.told())[5:] == b"b" * 20


SETS = st.tuples(st.just("set"), st.integers(0, 60))
GRANTS = st.tuples(st.just("grant"), st.integers(1, 60))


@given(st.binary(min_size=100, max_size=400), st.lists(st.one_of(SETS, GRANTS), max_size=20))
def test_new_windows_let_nothing_out_before_they_are_acknowledged(message, steps):
    peer = Peer(window=20)
    peer.send(peer.headers(1) + data(1, message))
    window, first, unacknowledged = 20 - len(peer.body(peer.told())), 20, []

    for what, size in steps:
        if what == "set":
            unacknowledged.append(size)
            peer.send(frames.settings({frames.INITIAL_WINDOW_SIZE: size}))
        else:
            window += size
            peer.send(frames.window_update(1, size))
        for kind, _, _, payload in peer.told():
            if kind == frames.SETTINGS:
                now = unacknowledged.pop(0)
                window, first = window + now - first, now
            elif kind == frames.DATA:
                window -= len(payload)
                assert window >= 0

    assert unacknowledged == []


def test_a_stream_that_cannot_send_back_is_not_let_send_more():
    peer = Peer(window=0)
    peer.send(peer.headers(1))
    piece = data(1, b"a" * 16_000)
    for _ in range(WINDOW // len(piece)):
        peer.send(piece)
    held = [stream for kind, _, stream, _ in peer.told() if kind == frames.WINDOW_UPDATE]

    peer.send(frames.window_update(0, 2**30) + frames.window_update(1, 2**30))
    let = [stream for kind, _, stream, _ in peer.told() if kind == frames.WINDOW_UPDATE]

    assert (held, let) == ([], [1])


def test_padding_continuations_priorities_and_unknown_frames_are_read():
    peer = Peer()
    block = peer.headers(1)[frames.HEAD_SIZE :]
    opened = bytes([3]) + b"\0\0\0\0\7" + block[:10] + b"\0" * 3
    flags = frames.PADDED | frames.HAS_PRIORITY
    peer.send(frames.head(len(opened), frames.HEADERS, flags, 1) + opened)
    peer.send(frames.head(len(block) - 10, frames.CONTINUATION, frames.END_HEADERS, 1) + block[10:])
    peer.send(frames.head(5, frames.PRIORITY, 0, 1) + b"\0" * 5)
    peer.send(frames.head(3, 0x42, 0, 1) + b"???")
    padded = bytes([4]) + struct.pack(">BI", 0, 2) + b"hi" + b"\0" * 4

    peer.send(frames.head(len(padded), frames.DATA, frames.PADDED, 1) + padded)

    assert peer.receivers[0].seen == [b"hi"]


def test_pings_and_settings_are_answered():
    peer = Peer()

    peer.send(frames.head(8, frames.PING, 0, 0) + b"12345678" + frames.settings({}))

    assert [(k, f, p) for k, f, _, p in peer.told()] == [
        (frames.PING, frames.ACK, b"12345678"),
        (frames.SETTINGS, frames.ACK, b""),
    ]


def test_a_call_that_we_end_first_resets_the_callers_side_and_late_data_is_ignored():
    peer = Peer()
    peer.send(peer.headers(1) + data(1, b"finish", b"unheard"))
    told = peer.told()

    peer.send(data(1, b"late") + frames.rst_stream(1, ErrorCode.CANCEL))

    assert kinds(told)[-2:] == [frames.HEADERS, frames.RST_STREAM]
    assert (peer.receivers[0].seen, peer.receivers[0].goodbyes) == ([b"finish"], 1)
    assert (peer.told(), peer.transport.is_closed) == ([], False)


def test_calls_whose_connection_is_lost_are_gone_once_each():
    peer = Peer()
    peer.send(peer.headers(1) + peer.headers(3) + frames.rst_stream(1, ErrorCode.CANCEL))

    peer.connection.connection_lost(None)

    assert [receiver.goodbyes for receiver in peer.receivers] == [1, 1]
    assert peer.those_open == set()


@pytest.mark.parametrize(
    "ending",
    [data(1, flags=frames.END_STREAM), data(1, b"finish"), frames.rst_stream(1, ErrorCode.CANCEL)],
)
@pytest.mark.parametrize("window", [None, 3])
def test_a_call_that_is_over_leaves_nothing_for_the_garbage_collector_to_find(ending, window):
    peer = Peer(window=window)
    gc.collect()
    gc.disable()

    peer.send(peer.headers(1) + data(1, b"more than three bytes") + ending)
    peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
    peer.receivers.clear()

    found = gc.collect()
    gc.enable()
    assert peer.connection.open_calls == 0
    assert found == 0


def test_a_compressed_message_is_unimplemented():
    peer = Peer()
    peer.send(peer.headers(1) + frames.head(7, frames.DATA, 0, 1) + b"\1\0\0\0\2hi")

    assert peer.status(peer.told()) == Status.UNIMPLEMENTED


def test_a_connection_that_leaves_refuses_new_calls_and_ends_the_old():
    peer = Peer()
    peer.send(peer.headers(1))

    peer.connection.leave()
    peer.send(peer.headers(3) + data(1, b"hi", flags=frames.END_STREAM))
    told = peer.told()

    assert goaway(told) == [ErrorCode.NO_ERROR]
    assert [(s, p) for kind, _, s, p in told if kind == frames.RST_STREAM] == [
        (3, struct.pack(">I", ErrorCode.REFUSED_STREAM))
    ]
    assert (peer.body(told)[5:], peer.status(told)) == (b"hi", Status.OK)
    assert peer.connection.open_calls == 0


BROKEN = {
    "a frame above the limit": (
        frames.head(frames.MAX_FRAME + 1, frames.DATA, 0, 1),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "data of a stream that never was": (data(7, b"hi"), ErrorCode.PROTOCOL_ERROR),
    "data of no stream": (data(0, b"hi"), ErrorCode.PROTOCOL_ERROR),
    "more padding than payload": (
        frames.head(2, frames.DATA, frames.PADDED, 1) + b"\2a",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a window of more than there is": (
        frames.window_update(0, frames.MAX_WINDOW),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a header block that is none": (
        frames.head(2, frames.HEADERS, frames.END_HEADERS, 3) + b"\xff\x80",
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a header block with data in it": (
        frames.head(1, frames.HEADERS, 0, 3) + b"\x83" + data(1, b"hi"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a continuation of nothing": (
        frames.head(1, frames.CONTINUATION, frames.END_HEADERS, 3) + b"\x83",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a stream of even number": (
        frames.head(1, frames.HEADERS, frames.END_HEADERS, 2) + b"\x83",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "headers without end": (
        frames.head(1, frames.HEADERS, 0, 3)
        + b"\x83"
        + (frames.head(16_000, frames.CONTINUATION, 0, 3) + b"\x83" * 16_000) * 5,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "settings of half a setting": (
        frames.head(3, frames.SETTINGS, 0, 0) + b"abc",
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "a first window above the largest": (
        frames.settings({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW + 1}),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "frames of nothing": (
        frames.settings({frames.MAX_FRAME_SIZE: 0}),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a reset of no stream": (frames.rst_stream(9, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_peer_that_breaks_the_protocol_is_sent_away(name):
    peer = Peer()
    peer.send(peer.headers(1))
    peer.told()
    sent, code = BROKEN[name]

    peer.send(sent)

    assert goaway(peer.told()) == [code]
    assert peer.transport.is_closed


def test_a_peer_that_sends_more_than_it_was_let_is_sent_away():
    peer = Peer(window=0)
    peer.send(peer.headers(1))
    for _ in range(WINDOW // 16_005 + 1):
        peer.send(data(1, b"a" * 16_000))

    assert goaway(peer.told()) == [ErrorCode.FLOW_CONTROL_ERROR]


def test_what_is_no_http2_is_sent_away():
    peer = Peer(preface=b"GET / HTTP/1.1\r\nhost: any\r\n\r\n")

    assert peer.transport.is_closed
