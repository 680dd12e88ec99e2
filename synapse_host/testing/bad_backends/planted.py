"""Bad backends, each a good one with one mistake, and the one test of the conformance suite that must fail for it.

They prove that the suite can fail, and that the name of a failure says what is wrong. A mistake is an edit of the text
of a good module, so a bad backend is never further from a good one than this table shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.bad_backends import plain_backend

#: Lines of the good module at which mistakes are made.
_MODEL = "        model = TableModel(spec)\n"
_CHECK = "    check(model, batch)\n"
_IDS = "        ids = batch.ids[start : start + count]\n"
_REPORT = 'progress(row + 1, "inference")'
_RETURN = "    return vectors\n"
_SCORES = "    return model.rerank(sequences, progress)\n"
_PROBABILITIES = """
    import numpy as np

    return 1 / (1 + np.exp(-model.rerank(sequences, progress)))
"""
_KEEP = 'globals().setdefault("kept", []).append'
#: Finds the connection to the host and makes it descriptor 1.
_STDOUT_IS_THE_SOCKET = """
        import stat

        sockets = [n for n in range(3, 64) if os.path.exists(f"/dev/fd/{n}") and stat.S_ISSOCK(os.fstat(n).st_mode)]
        os.dup2(sockets[0], 1)
"""
_PHONES_HOME = """
        import contextlib
        import socket

        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", 9), timeout=1)
"""
_ENDS_LATE = """
        import signal
        import threading

        signal.signal(signal.SIGTERM, lambda *_: threading.Timer(60, os._exit, (0,)).start())
"""
_ROLLED = 'np.roll(values.reshape(entry.shape), globals().setdefault("loads", []).append(0) or len(loads), axis=1)'
_UNTYPED = """
    from synapse_host.hookspecs import PluginError

    try:
        return load_engine(spec, DTYPES, _backend, progress)
    except PluginError as refusal:
        if refusal.code == "artifact_invalid":
            raise RuntimeError("it did not work") from refusal
        raise
"""


@dataclass(frozen=True, slots=True)
class BadBackend:
    """``edits`` maps texts of the good module to what stands there instead; ``caught_by`` names the test that fails."""

    caught_by: str
    edits: Mapping[str, str]
    good: Path = Path(plain_backend.__file__)

    def source(self, name: str) -> str:
        """The module, registered as ``name``; raises ``ValueError`` for an edit whose text is not in the good one."""
        return edited(self.good, name, self.edits)


def edited(good: Path, name: str, edits: Mapping[str, str]) -> str:
    """The text of the module ``good`` as backend ``name`` with every edit made once."""
    text = good.read_text(encoding="utf-8")
    for own in ('BACKEND = "plain"', 'backend="reference"'):
        text = text.replace(own, f'{own.partition(chr(34))[0]}"{name}"')
    for old, new in edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{good.name} has {old!r} {text.count(old)} times; an edit needs exactly one place")
        text = text.replace(old, new)
    return text


#: The twelve that are run every time.
PLANTED: Mapping[str, BadBackend] = MappingProxyType(
    {
        "reversed-results": BadBackend(
            "test_results_come_in_the_order_of_the_batch", {_RETURN: "    return vectors[::-1]\n"}
        ),
        "copies-of-row-0": BadBackend(
            "test_different_rows_get_different_vectors", {_RETURN: "    return vectors[[0] * len(vectors)]\n"}
        ),
        "ignored-mask": BadBackend(
            "test_a_row_is_the_same_beside_longer_and_shorter_rows",
            {_IDS: f"{_IDS}        ids = np.pad(ids, (0, max(batch.counts) - count))\n"},
        ),
        "last-row-rounded": BadBackend(
            "test_a_row_is_the_same_alone_and_in_a_batch",
            {_RETURN: f"    if len(vectors) > 1:\n        vectors[-1] = vectors[-1].astype(np.float16)\n{_RETURN}"},
        ),
        "stdout-on-the-connection": BadBackend(
            "test_what_is_printed_never_reaches_the_connection", {_MODEL: _STDOUT_IS_THE_SOCKET + _MODEL}
        ),
        "any-token-id": BadBackend(
            "test_a_token_id_outside_the_vocabulary_is_refused",
            {"    if outside.any():\n": "    batch.ids[outside] if False else None\n    if False:\n"},
        ),
        "progress-repeats": BadBackend("test_progress_only_grows", {_REPORT: 'progress(1, "inference")'}),
        "progress-before-work": BadBackend(
            "test_a_refused_request_reports_no_work",
            {_CHECK: f'    progress(1, "inference")\n{_CHECK}', _REPORT: 'progress(row + 2, "inference")'},
        ),
        "wrong-dims": BadBackend(
            "test_a_vector_has_the_announced_dims",
            {"self.dims = self.table.shape[1]": "self.dims = self.table.shape[1] + 1"},
        ),
        "unload-keeps-all": BadBackend(
            "test_an_unloaded_model_lets_go_of_its_file", {"    model.close()\n": f"    {_KEEP}(model)\n"}
        ),
        "silent-truncation": BadBackend(
            "test_a_row_past_max_tokens_is_refused",
            {
                "    if max(batch.counts) > model.max_tokens:\n": "    if False:\n",
                _IDS: f"{_IDS}        ids = ids[:512]\n",
            },
        ),
        "late-sigterm": BadBackend("test_sigterm_ends_the_worker", {_MODEL: _ENDS_LATE + _MODEL}),
    }
)
#: More mistakes, for the other tests of the suite.
MORE_PLANTED: Mapping[str, BadBackend] = MappingProxyType(
    {
        "another-description-each-time": BadBackend(
            "test_two_children_describe_the_same", {"build_flags={}": 'build_flags={"pid": str(os.getpid())}'}
        ),
        "another-engine-in-the-worker": BadBackend(
            "test_hello_repeats_the_description",
            {'engine_version="1"': 'engine_version="2" if "--socket" in __import__("sys").argv else "1"'},
        ),
        "floor-that-moves": BadBackend(
            "test_two_children_ask_for_the_same_floor", {'required={"cores": 1}': 'required={"cores": os.getpid()}'}
        ),
        "floor-without-a-fact": BadBackend(
            "test_every_required_fact_is_also_observed", {'required={"cores": 1}': 'required={"memory_mb": 1}'}
        ),
        "buckets-mixed-up": BadBackend(
            "test_a_load_announces_dims_and_buckets",
            {"    buckets: Sequence[int] | None = None\n": "    buckets = [32, 16]\n"},
        ),
        "another-table-each-load": BadBackend(
            "test_a_reloaded_model_gives_the_same_vectors", {"values.reshape(entry.shape)": _ROLLED}
        ),
        "no-model-of-its-own": BadBackend(
            "test_a_second_load_leaves_the_first_model_its_vectors",
            {
                "    return model\n": "    globals()['latest'] = model\n    return model\n",
                _CHECK: f"    model = globals()['latest']\n{_CHECK}",
            },
        ),
        "random-bits": BadBackend(
            "test_the_same_request_twice_gives_the_same_vectors",
            {_RETURN: "    return vectors + np.random.default_rng().normal(0, 1e-5, vectors.shape).astype('f4')\n"},
        ),
        "nan-in-long-rows": BadBackend(
            "test_rows_of_every_edge_length_are_served",
            {_REPORT: f"vectors[row] *= np.nan if count > 256 else 1\n        {_REPORT}"},
        ),
        "last-token-left-out": BadBackend(
            "test_every_token_of_a_row_counts[last]", {_IDS: f"{_IDS}        ids = ids[: max(1, count - 1)]\n"}
        ),
        "token-0-as-padding": BadBackend("test_token_0_is_no_padding", {_IDS: f"{_IDS}        ids = ids[ids != 0]\n"}),
        "always-normalized": BadBackend(
            "test_normalize_decides_the_length_and_not_the_direction", {"normalize=batch.normalize": "normalize=True"}
        ),
        "one-pooling": BadBackend("test_each_pooling_is_another_one", {'if pooling == "mean":': "if pooling:"}),
        "any-configuration": BadBackend(
            "test_a_configuration_of_zeros_is_refused", {"        if entry.shape != (": "        if False and (entry, "}
        ),
        "inference-while-loading": BadBackend(
            "test_a_load_reports_setup_alone", {'progress(1, "setup")': 'progress(1, "inference")'}
        ),
        "no-progress": BadBackend("test_a_batch_of_many_rows_reports_progress", {f"        {_REPORT}\n": ""}),
        "progress-by-the-clock": BadBackend(
            "test_the_same_batch_reports_the_same_progress",
            {_REPORT: 'progress(__import__("time").monotonic_ns(), "inference")'},
        ),
        "calls-home": BadBackend("test_no_connection_is_attempted", {_MODEL: _PHONES_HOME + _MODEL}),
        "batches-kept": BadBackend(
            "test_embedding_again_needs_no_more_memory", {_CHECK: f"{_CHECK}    {_KEEP}(np.ones(1 << 16))\n"}
        ),
        "weights-kept": BadBackend(
            "test_loading_again_needs_no_more_memory", {_MODEL: f"{_MODEL}        {_KEEP}(model.table.copy())\n"}
        ),
        "other-activation": BadBackend(
            "test_vectors_agree_with_the_reference",
            {
                "    return load_engine(spec,": (
                    "    from dataclasses import replace\n\n"
                    '    wrong = {"hidden_act": "gelu_new"} if spec.runtime_config["operation"] == "embed" else {}\n'
                    "    spec = replace(spec, config={**spec.config, **wrong})\n"
                    "    return load_engine(spec,"
                )
            },
            Path(reference_plugin.__file__),
        ),
        "scores-reversed": BadBackend(
            "test_scores_come_in_the_order_of_the_sequences",
            {_SCORES: "    return model.rerank(sequences, progress)[::-1].copy()\n"},
            Path(reference_plugin.__file__),
        ),
        "scores-of-a-batch": BadBackend(
            "test_a_score_is_the_same_alone_and_in_company",
            {_SCORES: "    return model.rerank(sequences, progress) + [0, 2**-9][len(sequences) > 1]\n"},
            Path(reference_plugin.__file__),
        ),
        "scores-as-probabilities": BadBackend(
            "test_scores_agree_with_the_reference",
            {_SCORES: _PROBABILITIES},
            Path(reference_plugin.__file__),
        ),
        "untyped-refusal": BadBackend(
            "test_a_damaged_weight_file_is_refused",
            {"    return load_engine(spec, DTYPES, _backend, progress)\n": _UNTYPED},
            Path(reference_plugin.__file__),
        ),
    }
)
