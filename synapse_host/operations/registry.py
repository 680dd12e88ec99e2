"""The table of served methods: what each is called, whether it changes anything, what it takes and who answers.

Pure but for awaiting handlers. Rules held here: unknown methods, the flow rule of contract section 4, and typed
refusal of malformed parameters (readings 9 and 16).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from synapse_host.errors import FlowScopeRefused, InvalidRequest, SynapseError, UnknownMethod
from synapse_host.operations.contract_methods import CONTRACT_METHODS, MethodKind
from synapse_host.operations.quoting import cut, quoted
from synapse_host.values import value_object

#: How pydantic calls a JSON object that one of our classes is made of.
_MODEL_CLASS = re.compile(r"dictionary or instance of \w+")
#: Faults of one request a message lists.
_LISTED_FAULTS = 3


@value_object
class RequestContext:
    """What a handler knows of a request beside its parameters.

    ``received_at`` is monotonic seconds; ``deadline_ms`` counts from it (reading 24). ``peer_uid`` is the operator
    identity, None where the platform tells none.
    """

    received_at: float
    peer_uid: int | None = None
    flow_id: str | None = None


@value_object
class RawVectors:
    """Vectors of a reply: ``rows`` by ``dims`` little-endian f32, in the order of the payload's items."""

    rows: int
    dims: int
    data: bytes | bytearray | memoryview


@value_object
class Reply:
    """A handler's answer. With ``vectors``, ``payload["vectors"]`` lists the items without their numbers.

    The payload belongs to the session once returned.
    """

    payload: dict[str, Any]
    vectors: RawVectors | None = None


Handler = Callable[[Any, RequestContext], Awaitable[Reply]]


@value_object
class Method:
    """One served method. ``params`` must say what it does with unknown fields."""

    name: str
    kind: MethodKind
    params: type[BaseModel]
    handler: Handler


class Registry:
    """The methods the host serves; ``refused`` is told of each request that a handler refuses.

    Raises:
        ValueError: a name is given twice, a kind differs from the contract's, or a params model is silent about
            unknown fields.

    """

    def __init__(
        self, methods: Iterable[Method] = (), refused: Callable[[Method, SynapseError], None] | None = None
    ) -> None:
        self._methods: dict[str, Method] = {}
        self._refused = refused
        for method in methods:
            self.add(method)

    def add(self, method: Method) -> None:
        """Serve one more method."""
        if method.name in self._methods:
            raise ValueError(f"method {method.name!r} is registered twice; register it once")
        declared = CONTRACT_METHODS.get(method.name, method.kind)
        if method.kind != declared:
            raise ValueError(f"method {method.name!r} is registered as {method.kind}; the contract says {declared}")
        if method.params.model_config.get("extra") not in ("forbid", "ignore"):
            raise ValueError(
                f"{method.params.__name__} must set extra to 'forbid' (or 'ignore' where fields are tolerated)"
            )
        self._methods[method.name] = method

    def __contains__(self, name: str) -> bool:
        return name in self._methods

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    async def dispatch(self, method: str, params: Mapping[str, Any], context: RequestContext) -> Reply:
        """Check one request and let its handler answer.

        Raises:
            FlowScopeRefused: a flow-scoped route asks for anything but a declared query.
            UnknownMethod: no method of this name is served.
            InvalidRequest: the parameters are malformed; the message names field, value and remedy.
            SynapseError: whatever the handler refuses with.

        """
        known = self._methods.get(method)
        if context.flow_id is not None:
            _check_flow(method, known, context.flow_id)
        if known is None:
            raise UnknownMethod(_unknown_message(method))
        try:
            checked = known.params.model_validate(params)
        except ValidationError as fault:
            raise InvalidRequest(_fault_message(known, fault), channel=True) from None
        try:
            return await known.handler(checked, context)
        except SynapseError as refusal:
            if self._refused is not None:
                self._refused(known, refusal)
            raise


def _check_flow(name: str, method: Method | None, flow_id: str) -> None:
    kind = CONTRACT_METHODS.get(name) if method is None else method.kind
    if kind != "query":
        said = "is not a declared method" if kind is None else "changes state"
        raise FlowScopeRefused(
            f"method {quoted(name)} {said} and flow {quoted(flow_id)} may call queries only; "
            "send it on a route without a flow_id"
        )


def _unknown_message(name: str) -> str:
    if name in CONTRACT_METHODS:
        return f"method {name!r} is not served by this version of the host; update it"
    return f"no method is called {quoted(name)}; see the reference page for the methods"


def _fault_message(method: Method, fault: ValidationError) -> str:
    errors = fault.errors(include_url=False, include_context=False)
    listed = [_one_fault(method, error) for error in errors[:_LISTED_FAULTS]]
    if len(errors) > _LISTED_FAULTS:
        listed.append(f"and {len(errors) - _LISTED_FAULTS} more")
    return f"{method.name}: " + "; ".join(listed)


def _one_fault(method: Method, error: Mapping[str, Any]) -> str:
    field = _field_name(error["loc"])
    if error["type"] == "missing":
        return f"{field} is missing: add it"
    shown = quoted(error["input"])
    if error["type"] == "extra_forbidden":
        known = ", ".join(method.params.model_fields) if len(error["loc"]) == 1 else "see the reference page"
        return f"{field} = {shown} is an unknown field: remove it (known: {known or 'none'})"
    return f"{field} = {shown} is not accepted: {_reason(error['msg'])}"


def _field_name(location: tuple[int | str, ...]) -> str:
    """Where a value stands; which of several forms it was taken for, in brackets, is no part of that."""
    named = [part for part in location if isinstance(part, int) or not part.startswith("(")]
    return "params" + "".join(f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in named)


def _reason(message: str) -> str:
    plain = _MODEL_CLASS.sub("object", message.removeprefix("Value error, "))
    return plain[:1].lower() + plain[1:]
