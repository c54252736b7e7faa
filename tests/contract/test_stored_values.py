"""Each form of a value, as 0.1 stores it: read for good, and written the same while 0.1 lasts [S12.3].

The fixture has a line per value: the Python expression, and its form in MongoDB's extended JSON. A new kind of value
gets a line; a line never changes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import ipaddress
import pathlib
import uuid
import zoneinfo
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pydantic
import pytest
from bson import json_util

from choreography_ray.codec import decode, encode
from choreography_ray.codec.forms import DECODERS
from choreography_ray.mapping import MapItem
from choreography_ray.model import JobStatus, Progress
from choreography_ray.records import Counts, Run

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "values-0.1.txt"
NAMES: dict[str, Any] = {
    **vars(ipaddress),
    **{module.__name__: module for module in (decimal, fractions, pathlib, uuid, zoneinfo, pydantic)},
    **{cls.__name__: cls for cls in (Counter, OrderedDict, deque, MapItem, JobStatus, Progress, Counts, Run)},
    "dt": dt,
    "np": np,
}
LINES = [line.split("\t") for line in FIXTURE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("expression", "stored"), LINES, ids=[expression for expression, _ in LINES])
def test_a_form_is_read_and_written_as_ever(expression: str, stored: str) -> None:
    value = eval(expression, NAMES)
    form = json_util.loads(stored, json_options=json_util.CANONICAL_JSON_OPTIONS)["value"]
    back = decode(form)
    assert type(back) is type(value)
    assert repr(back) == repr(value)
    assert json_util.dumps({"value": encode(value)}, json_options=json_util.CANONICAL_JSON_OPTIONS) == stored


def test_every_form_has_a_line() -> None:
    """Addresses of pydantic have one form, under many names; nothing makes a path of Windows here."""
    told = "".join(stored for _, stored in LINES)
    missing = {tag for tag in DECODERS if f'"~": "{tag}"' not in told and not tag.startswith("pydantic.")}
    assert missing == {"WindowsPath"}
