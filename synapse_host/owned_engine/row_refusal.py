"""The refusal of one row of a batch, in the form that lets the host name the item to whoever sent it."""

from __future__ import annotations

from synapse_host.hookspecs import PluginError
from synapse_host.worker_protocol.item_refusal import refusal_text


def row_refused(item_id: str, problem: str) -> PluginError:
    """``invalid_request`` about the item ``item_id``; for a sequence of a rerank that is its place, in decimals."""
    return PluginError("invalid_request", refusal_text(item_id, problem))
