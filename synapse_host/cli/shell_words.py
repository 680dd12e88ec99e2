"""Values as a shell takes them, so that what a command shows can be typed or pasted into the next one. Pure."""

from __future__ import annotations

import shlex


def shell_word(value: str) -> str:
    """``value`` as one word of bash and zsh, on one line and without characters that a terminal obeys or hides.

    What needs no quotes has none. Characters that cannot be seen are written as the bytes of their UTF-8, which every
    bash understands; it learned code points only in 4.2.
    """
    if value.isprintable() and "  " not in value:
        return shlex.quote(value)
    # Of blanks in a row a table keeps one, and nobody counts them.
    return "$'" + "".join(map(_escaped, value)).replace("  ", r"\x20\x20") + "'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "backslashreplace"))
