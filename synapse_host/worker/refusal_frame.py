"""The ERR a worker answers with: a code of the protocol, and a text that fits the frame."""

from __future__ import annotations

from synapse_host.worker_protocol.codec import encode
from synapse_host.worker_protocol.messages import ERR_CODES, Err

#: A text of this many characters fits the smallest frame, each taking twelve bytes of JSON at worst.
_ALWAYS_FITS = 240


def refusal_frame(code: str, text: str, req_id: str | None, max_frame: int) -> Err:
    """ERR with as much of ``text`` as fits ``max_frame`` bytes. A code no protocol knows moves into the text."""
    if code not in ERR_CODES:
        code, text = "inference_failed", f"{code}: {text}"
    err = Err(code, text, req_id)
    if len(text) <= _ALWAYS_FITS or len(encode(err)) <= max_frame:
        return err
    return Err(code, f"{text[:_ALWAYS_FITS]}…", req_id)
