from __future__ import annotations

import re
from pathlib import Path

from synapse_host.errors import EXCEPTIONS, STABLE_ERRORS, SynapseError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
ROW = re.compile(
    r"^\| `(?P<code>\w+)` \| (?P<cls>transient|permanent) \| (?P<again>yes|no) "
    r"\| (?P<after>[^|]+) \| (?P<travels>\w+) \|",
    re.M,
)


def test_the_page_holds_the_table_of_codes_and_nothing_else() -> None:
    documented = {
        row["code"]: (row["cls"], row["again"] == "yes", row["after"].strip(), row["travels"])
        for row in ROW.finditer(PAGE.read_text("utf-8"))
    }
    expected = {
        rule.code: (
            rule.error_class,
            rule.safe_to_retry,
            f"{rule.retry_after_ms} ms" if rule.retry_after_ms else "never",
            "channel" if rule.channel else "result",
        )
        for rule in STABLE_ERRORS.values()
    }
    assert documented == expected


def test_every_code_has_an_exception_type_of_its_own() -> None:
    assert set(EXCEPTIONS) == set(STABLE_ERRORS)
    assert len(set(EXCEPTIONS.values())) == len(STABLE_ERRORS)
    for code, kind in EXCEPTIONS.items():
        assert issubclass(kind, SynapseError)
        assert kind.code == code


def test_transient_errors_suggest_a_wait_and_permanent_ones_never_do() -> None:
    for rule in STABLE_ERRORS.values():
        if rule.error_class == "permanent":
            assert rule.retry_after_ms is None, rule.code
            assert not rule.safe_to_retry, rule.code
        elif rule.code != "deadline_exceeded":
            assert rule.retry_after_ms, rule.code
