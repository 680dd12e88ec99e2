"""The token ids of texts, so that nobody's few words wait behind somebody's long ones.

The library encodes a batch on one pool of threads of the whole process. Whoever hands in several texts waits until that
pool is free, the host's event loop included; a text by itself is encoded where it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from synapse_host.tokenization.library_tokenizer import library_faults

#: Characters up to which texts are encoded one by one: what the event loop encodes itself, prompts included, and more.
FEW_CHARACTERS = 16_384
#: Characters past which a text is encoded by itself, in the thread that asks: it would keep the pool for long.
LONG_CHARACTERS = 65_536


def token_ids(tokenizer: Any, texts: Sequence[str], **options: Any) -> Iterator[list[int]]:
    """The ids of each text in turn, a long one's made when it is its turn; raises what ``library_faults`` makes of it.

    The fast form of the library leaves out character offsets, a quarter of the time; the tokens are the same.
    """
    apart = sum(map(len, texts)) <= FEW_CHARACTERS
    together = [] if apart else [text for text in texts if len(text) <= LONG_CHARACTERS]
    with library_faults("could not encode these texts"):
        encoded = iter(tokenizer.encode_batch_fast(together, **options) if together else ())
    for text in texts:
        with library_faults("could not encode these texts"):
            if apart or len(text) > LONG_CHARACTERS:
                (encoding,) = tokenizer.encode_batch_fast([text], **options)
            else:
                encoding = next(encoded)
            ids: list[int] = encoding.ids
        yield ids
