"""A gRPC server over HTTP/2 for the few calls that gateways make of a picker.

The question: what does a message between Envoy and the picker cost. In grpc.aio it is a thread of
its own that polls, a hand-over of the interpreter's lock, a wake-up and two coroutine switches,
some 80 us for each of five or six a request. Here a message is a call: bytes that came are cut into
frames, a frame's message is handed to its call at once, and the answers to what came together leave
together.

What there is: HTTP/2 with prior knowledge, or by ALPN where TLS is wanted; HPACK by `hpack`; flow
control both ways; streams, pings, settings, going away. What there is not, since no gateway uses it
towards a picker: compressed messages, server push, priorities, upgrades from HTTP/1.1, deadlines of
the server's own (a gateway resets what takes it too long).

`frames` is the layout of bytes, `headers` HPACK, `messages` gRPC's framing, `connection` the state
of one connection and `outflow` what it has to send, `calls` what a call is to its handler, and
`server` the listening and the draining.

Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK), the gRPC protocol over HTTP/2.
"""
