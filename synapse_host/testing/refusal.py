"""What a refusal must look like, stated whole, and how an answer is held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from synapse_host.errors import STABLE_ERRORS

#: Beside the id, inside ``result``, or inside the last status of the job the request started (reading 16).
Place = Literal["channel", "result", "job"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One expected refusal: its code, where it rides, words of its message, and exactly the keys of its details.

    ``details`` None means that there are none. ``error_class`` is the code's own unless given.
    """

    code: str
    place: Place
    words: tuple[str, ...]
    details: frozenset[str] | None = None
    error_class: str | None = None

    def check(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Hold a whole answer, or a job's status as ``{"result": status}``, against this; returns the error object."""
        error: dict[str, Any] = answer["error"] if self.place == "channel" else answer["result"]["error"]
        assert ("result" in answer) is (self.place != "channel"), answer
        assert ("error" in answer) is (self.place == "channel"), answer
        if self.place != "channel":
            assert answer["result"]["module_generation"] >= 1
        rule = STABLE_ERRORS[self.code]
        error_class = self.error_class or rule.error_class
        assert (error["code"], error["class"]) == (self.code, error_class), error
        assert error["safe_to_retry_same_request"] is (rule.safe_to_retry and error_class == rule.error_class), error
        assert (error.get("retry_after_ms") or 0) >= 0
        assert ("retry_after_ms" in error) <= (error_class == "transient"), error
        missing = [word for word in self.words if word not in error["message"]]
        assert not missing, f"{missing} not in {error['message']!r}"
        given = frozenset(error["details"]) if "details" in error else None
        assert given == self.details, error
        return error


def refusal(
    code: str, place: Place, *words: str, details: str | None = None, error_class: str | None = None
) -> Refusal:
    """A ``Refusal`` for a table: words of the message in order, keys of the details in one text."""
    return Refusal(code, place, words, None if details is None else frozenset(details.split()), error_class)
