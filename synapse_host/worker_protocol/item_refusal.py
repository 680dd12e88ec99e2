"""How the text of an ERR names the one item at fault: ``item "<id>": what is wrong``.

ERR has no field for an item, and the host must put its id into the error's details, so both sides use this pair.
"""

from __future__ import annotations

import json

_PREFIX = "item "
_decoder = json.JSONDecoder()


def refusal_text(item_id: str, problem: str) -> str:
    """The text of an ERR about one item; the id is quoted as JSON and so survives any character in it."""
    return f"{_PREFIX}{json.dumps(item_id)}: {problem}"


def refused_item(text: str) -> str | None:
    """The id of the item ``text`` is about, or None when it names none."""
    if not text.startswith(_PREFIX):
        return None
    try:
        item_id, end = _decoder.raw_decode(text, len(_PREFIX))
    except ValueError:
        return None
    return item_id if isinstance(item_id, str) and text[end : end + 1] == ":" else None
