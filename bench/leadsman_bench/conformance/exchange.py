"""One ext_proc exchange as a gateway has it: say the steps of a request, read what is answered.

This knows the protocol and nothing of any picker: it speaks gRPC to an address, and what the
protocol does not allow is a `Breach` that says what was expected and what came.

Source: Gateway API Inference Extension, proposal 004; envoy.service.ext_proc.v3 (Envoy 1.40).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from leadsman.units import Seconds
from leadsman_extproc.events import BodyMode, Profile
from leadsman_extproc.wire import DESTINATION, SERVED, SUBSET

PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
LONGEST_PIECE: Final = 64 * 1024
"""Bytes at which some gateways no longer take a streamed piece."""
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
QUIET: Final[Seconds] = 0.05
"""How long nothing must come where nothing may."""

DUPLEX: Final = Profile()
BUFFERED: Final = Profile(request=BodyMode.BUFFERED, response=BodyMode.STREAMED)


class Breach(Exception):  # noqa: N818 -- it is the picker that erred
    """What a picker did that the protocol does not allow."""


@dataclass(slots=True, kw_only=True)
class Routed:
    """How a request was answered: sent on to `endpoints`, in order, or refused with `status`."""

    endpoints: list[str] = field(default_factory=list)
    status: int | None = None
    body: bytes = b""


class Exchange:
    """One stream to the picker; leaving it cancels what is not over."""

    def __init__(self, channel: Any, profile: Profile, patience: Seconds) -> None:
        self._call = channel.stream_stream(
            PROCESS,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()
        self._profile = profile
        self._patience = patience
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._reader = asyncio.create_task(self._follow())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            while (answer := await self._call.read()) is not _EOF:
                self._answers.put_nowait(answer)
        except grpc.aio.AioRpcError as error:
            why = f"the stream failed: {error.code().name} {error.details()}"
            self._answers.put_nowait(Breach(why))
        else:
            self._answers.put_nowait(None)

    async def _say(self, message: Any) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise Breach(f"the stream was ended before all was said: {error!r}") from None

    async def headers(
        self, headers: Mapping[str, str], *, end: bool = False, subset: object = None
    ) -> None:
        """Begin the request. subset: the gateway's hint, a list or a string; None: no hint."""
        message = pb.ProcessingRequest()
        message.request_headers.end_of_stream = end
        _fill(message.request_headers, headers)
        message.protocol_config.request_body_mode = self._profile.request.value
        message.protocol_config.response_body_mode = self._profile.response.value
        if subset is not None:
            message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
                {SUBSET: subset}
            )
        await self._say(message)

    async def body(self, data: bytes, *, end: bool = False) -> None:
        """Send a piece of the request's body."""
        message = pb.ProcessingRequest()
        message.request_body.body, message.request_body.end_of_stream = data, end
        await self._say(message)

    async def trailers(self) -> None:
        """End the request by trailers."""
        message = pb.ProcessingRequest()
        message.request_trailers.SetInParent()
        await self._say(message)

    async def response(
        self, headers: Mapping[str, str], *, end: bool = False, served: str | None = None
    ) -> None:
        """Begin the response, which has to be answered."""
        message = pb.ProcessingRequest()
        message.response_headers.end_of_stream = end
        _fill(message.response_headers, headers)
        if served is not None:
            message.metadata_context.filter_metadata["envoy.lb"].update({SERVED: served})
        await self._say(message)
        await self.expect("response_headers")

    async def response_body(self, data: bytes, *, end: bool = False) -> None:
        """Send a piece of the response's body."""
        message = pb.ProcessingRequest()
        message.response_body.body, message.response_body.end_of_stream = data, end
        await self._say(message)

    async def response_trailers(self) -> None:
        """End the response by trailers."""
        message = pb.ProcessingRequest()
        message.response_trailers.SetInParent()
        await self._say(message)

    async def read(self) -> Any | None:
        """Read one answer; None where the picker has ended the stream in order."""
        try:
            async with asyncio.timeout(self._patience):
                answer = await self._answers.get()
        except TimeoutError:
            raise Breach(f"nothing was answered within {self._patience:g} s") from None
        if isinstance(answer, Breach):
            raise answer
        return answer

    async def expect(self, part: str) -> Any:
        """Read one answer, which has to be about this part."""
        answer = await self.read()
        came = "the end of the stream" if answer is None else answer.WhichOneof("response")
        if came != part:
            raise Breach(f"expected an answer to {part}, got {came}")
        return answer

    async def is_quiet(self) -> None:
        """Nothing may have been answered yet, nor come within QUIET."""
        await asyncio.sleep(QUIET)
        if not self._answers.empty():
            raise Breach("it was answered before the request was whole")

    async def nothing_follows(self) -> None:
        """No answer may come any more; the stream may end."""
        await asyncio.sleep(QUIET)
        while not self._answers.empty():
            answer = self._answers.get_nowait()
            if isinstance(answer, Breach):
                raise answer
            if answer is not None:
                raise Breach(f"an answer too many: {answer.WhichOneof('response')}")

    async def routed(self, *, until: str) -> Routed:
        """Read what answers a whole request, up to the answer to `until`, its last part."""
        routed = Routed()
        answer = await self.read()
        if answer is not None and answer.WhichOneof("response") == "immediate_response":
            routed.status = answer.immediate_response.status.code
            return routed
        if answer is None or answer.WhichOneof("response") != "request_headers":
            raise Breach("the headers have to be answered first")
        routed.endpoints = destinations(answer, answer.request_headers)
        while until != "request_headers":
            answer = await self.read()
            part = None if answer is None else answer.WhichOneof("response")
            if answer is not None and part == "request_body":
                if _gives_back(answer, routed, may_end=until == "request_body"):
                    break
            elif part == until:
                break
            else:
                raise Breach(f"the body has to be given back before {part or 'the end'}")
        return routed

    async def echoed(self, until: str) -> bytes:
        """Read what answers a response in full duplex, up to its last part; return its body."""
        body = bytearray()
        while True:
            answer = await self.read()
            part = None if answer is None else answer.WhichOneof("response")
            if answer is not None and part == "response_body":
                piece = answer.response_body.response.body_mutation.streamed_response
                body += piece.body
                if piece.end_of_stream and until == "response_body":
                    return bytes(body)
            elif part == until:
                return bytes(body)
            else:
                raise Breach(f"expected the response's body back, got {part or 'the end'}")


def _gives_back(answer: Any, routed: Routed, *, may_end: bool) -> bool:
    """Take one piece of the body that was given back; say whether it was the last."""
    mutation = answer.request_body.response.body_mutation
    if mutation.WhichOneof("mutation") != "streamed_response":
        raise Breach("a body in full duplex has to come back as a streamed_response")
    piece = mutation.streamed_response
    if len(piece.body) >= LONGEST_PIECE:
        raise Breach(f"a piece of {len(piece.body)} bytes is more than gateways take")
    if piece.end_of_stream and not may_end:
        raise Breach("the body was ended before the trailers")
    routed.body += piece.body
    return bool(piece.end_of_stream)


def destinations(answer: Any, part: Any) -> list[str]:
    """Return where a request goes: header and dynamic metadata have to say the same."""
    options = part.response.header_mutation.set_headers
    named = [o.header for o in options if o.header.key.lower() == DESTINATION]
    header = (named[-1].raw_value.decode() or named[-1].value) if named else ""
    space = answer.dynamic_metadata.fields.get("envoy.lb")
    field_ = space.struct_value.fields.get(DESTINATION) if space is not None else None
    metadata = field_.string_value if field_ is not None else ""
    if header != metadata:
        raise Breach(f"the header says {header!r}, the metadata {metadata!r}")
    return [one.strip() for one in header.split(",") if one.strip()]


def _fill(part: Any, headers: Mapping[str, str]) -> None:
    for key, value in headers.items():
        part.headers.headers.add(key=key, raw_value=value.encode())
