"""What the llama backend says of itself and of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synapse_llama_worker import evidence, plugin
from synapse_llama_worker.evidence import Machine, judge

FIT = Machine("linux", "x86_64", evidence.REQUIRED_LIBRARY)


def test_a_fit_machine_is_accepted() -> None:
    assert judge(FIT).status == "ok"


@pytest.mark.parametrize(
    ("change", "reason", "detail", "said"),
    [
        ({"platform": "win32"}, "not_supported_on_platform", "not_supported_on_platform", "'win32'"),
        ({"library": None}, "worker_missing", "runtime_missing", "not installed"),
        ({"library": "0.3.1"}, "worker_missing", "runtime_version", "0.3.1"),
        ({"fault": "OSError: libgomp"}, "worker_missing", "probe_failed", "libgomp"),
    ],
)
def test_the_first_lack_is_the_reason(change: dict[str, str | None], reason: str, detail: str, said: str) -> None:
    verdict = judge(replace(FIT, **change))  # type: ignore[arg-type]
    assert (verdict.status, verdict.reason, verdict.reason_detail) == ("refused", reason, detail)
    assert verdict.message is not None
    assert said in verdict.message


def test_this_machine_runs_it() -> None:
    verdict = evidence.probe()
    assert verdict.status == "ok", verdict.message


def test_the_identity_names_the_library_and_nothing_is_owned() -> None:
    description = plugin.synapse_describe()
    assert description.engine == "llama.cpp-worker"
    assert description.build_flags["llama_cpp_python"] == evidence.REQUIRED_LIBRARY
    assert (description.owned, description.abort_capable, description.kernel_revision) == (False, True, None)
