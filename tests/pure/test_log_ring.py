from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synapse_host.supervision.log_ring import LOG_RING_BYTES, LogRing


def test_lines_are_tagged_and_in_order() -> None:
    ring = LogRing()
    ring.append("stdout", b"one\ntwo\n")
    ring.append("stderr", b"three\r\n")
    assert ring.tail() == "stdout: one\nstdout: two\nstderr: three\n"


def test_a_line_in_pieces_is_one_line() -> None:
    ring = LogRing()
    ring.append("stderr", b"segmen")
    ring.append("stdout", b"unrelated\n")
    ring.append("stderr", b"tation fault\n")
    assert ring.tail() == "stdout: unrelated\nstderr: segmentation fault\n"


def test_last_words_without_newline_are_kept() -> None:
    ring = LogRing()
    ring.append("stderr", b"GGML_ASSERT")
    assert ring.tail() == "stderr: GGML_ASSERT\n"


def test_the_oldest_lines_go_first() -> None:
    ring = LogRing(capacity=40)
    for number in range(10):
        ring.append("stderr", b"line %d\n" % number)
    assert ring.tail() == "stderr: line 8\nstderr: line 9\n"


def test_an_endless_line_keeps_its_end() -> None:
    ring = LogRing()
    ring.append("stdout", b"x" * 100_000 + b"END")
    assert ring.tail().endswith("END\n")
    assert len(ring.tail()) <= LOG_RING_BYTES


def test_bytes_that_are_no_text_do_not_hide_the_rest() -> None:
    ring = LogRing()
    ring.append("stdout", b"\xff\xfe ok\n")
    assert ring.tail() == "stdout: ?? ok\n"


def test_the_lines_it_completes_are_given_back_and_the_last_words_at_the_end() -> None:
    ring = LogRing()
    assert ring.append("stdout", b"one\ntw") == [b"one"]
    assert ring.append("stderr", b"a\r\n\nb") == [b"a\r", b""]
    assert ring.append("stdout", b"o\n") == [b"two"]
    assert (ring.end("stderr"), ring.end("stdout"), ring.end("stderr")) == ([b"b"], [], [])
    assert ring.tail() == "stdout: one\nstderr: a\nstderr: \nstdout: two\nstderr: b\n"


@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_no_byte_of_a_stream_is_lost_on_its_way_to_the_log(chunks: list[bytes]) -> None:
    ring = LogRing()
    lines = [line for chunk in chunks for line in ring.append("stdout", chunk)]
    pieces = [*lines, *ring.end("stdout")]
    assert b"".join(pieces) == b"".join(chunks).replace(b"\n", b"")
    assert all(len(piece) <= 1024 for piece in pieces)


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=3000)), max_size=12))
def test_never_more_than_its_capacity(chunks: list[tuple[str, bytes]]) -> None:
    ring = LogRing(capacity=2048)
    for stream, data in chunks:
        ring.append(stream, data)
    assert len(ring.tail().encode()) <= 2048
