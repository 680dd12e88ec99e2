"""The client's half of the consumer protocol, without I/O: requests to bytes, bytes to matched answers.

Both clients drive this one object, so they cannot differ in what they accept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from synapse_host.client.faults import ReplyMismatch
from synapse_host.client.raw_frame import RawFrame
from synapse_host.client.unsendable import unsendable
from synapse_host.errors import InvalidRequest, SynapseError, from_wire
from synapse_host.framing import FrameDecoder, FrameTooLarge, frame_header

API_VERSION = 1
#: The host's default; its hello names the real limit.
_DEFAULT_MAX_FRAME = 64 * 1024 * 1024
#: From this many missing bytes on, a transport does well to read into place.
_IN_PLACE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Received:
    """One answer; ``raw`` holds the vectors as little-endian f32 where the payload says ``raw``."""

    payload: dict[str, Any]
    raw: bytearray | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host said of itself in its hello."""

    version: str
    module_generation: int
    max_frame: int
    vectors: str


class Exchange:
    """Requests sent and answers received on one connection."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(_DEFAULT_MAX_FRAME)
        self._max_frame = _DEFAULT_MAX_FRAME
        self._numbers = itertools.count(1)
        self._pending: set[int] = set()
        self._arrived: dict[int, Received | Exception] = {}
        self._raw: tuple[Any, dict[str, Any], RawFrame] | None = None
        #: Set by the host's hello.
        self.host: HostFacts | None = None
        #: The host refused the connection itself; nothing more will be answered.
        self.refusal: SynapseError | None = None

    @property
    def wanted_bytes(self) -> int:
        """How many more bytes complete what is arriving."""
        return self._decoder.wanted_bytes

    def hello(self) -> bytes:
        """The first frame: ask for raw vectors."""
        return _framed(orjson.dumps({"hello": {"api": API_VERSION, "vectors": "f32"}}), self._max_frame)

    def request(self, method: str, params: Mapping[str, Any], flow_id: str | None = None) -> tuple[int, bytes]:
        """A new request's id and its frame.

        Raises:
            InvalidRequest: the parameters cannot be sent: not JSON, ill-formed Unicode, larger than a frame.

        """
        number = next(self._numbers)
        document: dict[str, Any] = {"id": number, "method": method, "params": params}
        if flow_id is not None:
            document["scope"] = {"flow_id": flow_id}
        try:
            frame = _framed(orjson.dumps(document), self._max_frame)
        except FrameTooLarge as fault:
            raise InvalidRequest(f"the parameters of {method} cannot be sent: {fault}", channel=True) from None
        except TypeError as fault:
            where = unsendable(params) or f"{fault}; use what JSON has"
            raise InvalidRequest(f"the parameters of {method} cannot be sent: {where}", channel=True) from None
        self._pending.add(number)
        return number, frame

    def feed(self, data: bytes) -> list[int]:
        """Take received bytes; the ids whose answers they completed.

        Raises:
            ReplyMismatch: the bytes are not the protocol's; the connection must close.

        """
        completed: list[int] = []
        try:
            self._take_bytes(data, completed)
        except (FrameTooLarge, KeyError, TypeError, ValueError) as fault:
            raise ReplyMismatch(f"the host sent what is no answer: {fault!r}; open a new connection") from fault
        return completed

    def space(self) -> memoryview | None:
        """Where the next bytes of a large raw frame go; call ``filled`` after writing there. None: call ``feed``."""
        space = None if self._raw is None else self._raw[2].space()
        return space if space is not None and len(space) >= _IN_PLACE_BYTES else None

    def filled(self, count: int) -> list[int]:
        """``count`` bytes were written to ``space``; the ids whose answers they completed."""
        completed: list[int] = []
        if self._raw is not None:
            self._raw[2].filled(count)
            self._settle_raw(completed)
        return completed

    def answered(self, numbers: Iterable[int]) -> int | None:
        """The first of ``numbers`` whose answer or refusal is there to be taken."""
        return next((number for number in numbers if number in self._arrived), None)

    def take(self, number: int) -> Received | None:
        """The answer to a request, once; None while it is on its way.

        Raises:
            SynapseError: the host refused.
            ReplyMismatch: its error code is unknown.

        """
        answer = self._arrived.pop(number, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget(self, number: int) -> None:
        """Drop a request nobody waits for; a late answer is thrown away."""
        self._pending.discard(number)
        self._arrived.pop(number, None)

    def _take_bytes(self, data: bytes, completed: list[int]) -> None:
        while True:
            if self._raw is not None:
                data = self._raw[2].feed(data)
                self._settle_raw(completed)
                if self._raw is not None:
                    return
            self._decoder.feed(data)
            while self._raw is None:
                if (frame := self._decoder.next_frame()) is None:
                    return
                self._take_frame(frame, completed)
            data = self._decoder.take_rest()

    def _settle_raw(self, completed: list[int]) -> None:
        if self._raw is not None and self._raw[2].complete:
            number, payload, frame = self._raw
            self._raw = None
            self._settle(number, Received(payload, frame.data), completed)

    def _take_frame(self, frame: bytes, completed: list[int]) -> None:
        document = _object(orjson.loads(frame))
        if "hello" in document:
            self._greeted(document["hello"])
            return
        number, error = document.get("id"), document.get("error")
        if error is None:
            self._take_result(number, _object(document["result"]), completed)
        elif number is None:
            self.refusal = _refusal(error)
        else:
            self._settle(number, error_from(error), completed)

    def _take_result(self, number: Any, result: dict[str, Any], completed: list[int]) -> None:
        # A job's status may carry its error beside its state; that is an answer, not a refusal.
        if "error" in result and "state" not in result:
            self._settle(number, error_from(result["error"]), completed)
        elif "raw" in result:
            raw = result["raw"]
            self._raw = (number, result, RawFrame(raw["rows"], raw["dims"], limit=self._max_frame))
        else:
            self._settle(number, Received(result), completed)

    def _greeted(self, hello: Mapping[str, Any]) -> None:
        self.host = HostFacts(hello["version"], hello["module_generation"], hello["max_frame"], hello["vectors"])
        self._max_frame = self._decoder.limit = self.host.max_frame

    def _settle(self, number: Any, answer: Received | Exception, completed: list[int]) -> None:
        if number in self._pending:
            self._pending.remove(number)
            self._arrived[number] = answer
            completed.append(number)


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ReplyMismatch(f"the host sent {value!r:.80} where an object belongs; open a new connection")
    return value


def _framed(body: bytes, limit: int) -> bytes:
    return frame_header(len(body), limit) + body


def _refusal(error: Any) -> SynapseError:
    error = _object(error)
    refusal = from_wire(error)
    refusal.safe_to_retry = bool(error.get("safe_to_retry_same_request", refusal.safe_to_retry))
    return refusal


def error_from(error: Any) -> Exception:
    """The exception for an error object found in an answer."""
    try:
        return _refusal(error)
    except ValueError as fault:
        return ReplyMismatch(str(fault))
