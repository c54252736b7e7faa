"""What can be set can be stored: every number of the options fits where it is kept."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from choreography_ray.access.starting import checked_labels
from choreography_ray.errors import NotStorable
from choreography_ray.options import ClusterOptions, JobsOptions

NUMBERS = [
    (options, name)
    for options in (JobsOptions, ClusterOptions)
    for name, field in options.model_fields.items()
    if "int" in str(field.annotation)
]


@pytest.mark.parametrize(("options", "name"), NUMBERS, ids=[name for _, name in NUMBERS])
def test_a_number_that_no_record_could_hold_is_refused(options: type[BaseModel], name: str) -> None:
    """By the name of its field, where it is set, and not at the first write."""
    for number in (2**63, -(2**63) - 1, 10**30):
        with pytest.raises(ValidationError, match=name):
            options(**{name: number})
    assert getattr(options(**{name: 1_000}), name) == 1_000


def test_labels_are_text_that_comes_back() -> None:
    """Other values are told by their text, and what is no Unicode is refused by its name."""
    assert checked_labels({"team": "a", "n": 1}) == {"team": "a", "n": "1"}  # type: ignore[dict-item]
    with pytest.raises(NotStorable, match=r"labels\['file'\]: it has half of a surrogate pair"):
        checked_labels({"file": "a\udcff"})
