"""How does anybody's text become one line that commands nothing: no terminal, no notebook, no reader of a log?

What a user's code can put into a record (ids, labels, messages, what a process printed) goes through here before people
see it. Markup is the business of whoever knows one: here it stays as it is.
"""

from __future__ import annotations

import unicodedata

_SPACES = frozenset("\n\r\t\v\f\x85\u2028\u2029")
_LEFT_OUT = frozenset({"Cc", "Cf", "Cs"})
"""Control characters with escape, format characters with those that turn the direction of writing, half surrogates."""


def clean(text: str, limit: int = 2000) -> str:
    """`text` on one line without control, format and surrogate characters; cut with an ellipsis after `limit`."""
    cut = text[: limit + 1]
    shown = cut if cut.isascii() and cut.isprintable() else "".join(map(_shown, cut))
    return shown if len(cut) <= limit else shown[: limit - 1] + "…"


def _shown(character: str) -> str:
    if character in _SPACES:
        return " "
    return "" if unicodedata.category(character) in _LEFT_OUT else character
