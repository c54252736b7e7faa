"""How a peer's script is asked and answers. It runs on the peer's own Python: nothing here but the standard library."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

ANSWER = "answer: "
"""Before the one line that counts: peers print lines of their own."""


def asked() -> Namespace:
    """What is to be done: `steps`, `slots`, `folder`, `url`."""
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--url", default="")
    return parser.parse_args()


def answer(seconds: float, **settings: str) -> None:
    """How long the work took, and what it ran on."""
    print(ANSWER + json.dumps({"seconds": seconds, "settings": settings}), flush=True)
