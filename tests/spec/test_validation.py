"""What is said of a setting that is wrong, where several forms are admitted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dpdist.spec.schema import Attribute
from dpdist.spec.validation import validation_message

BUCKETS = "{width: n}, {edges: [...]}, {groups: [[...], ...]}, {every: month} or a list"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": {"count": 0}}, "bins.count: expected 1 or more"),
        ({"bins": {"edges": [0, 5, 5]}}, "bins: edges must be strictly increasing"),
        ({"bins": {"width": 3}}, "bins: expected {count: n}, {edges: [...]} or {every: month}"),
        ({"bins": 5}, "bins: expected {count: n}, {edges: [...]} or {every: month}"),
        ({"missing": "ignore"}, "missing: expected 'refuse' or 'drop' or {category: NAME}"),
        ({"missing": {"category": ""}}, "missing.category: expected a text of 1 character(s) or more"),
        ({"buckets": {"width": 0}}, "buckets.width: expected 1 or more"),
        ({"buckets": [1, "x"]}, "buckets.1: expected an integer"),
        ({"buckets": "x"}, f"buckets: expected {BUCKETS}"),
        ({"levels": [{"prefx": 1}]}, f"levels.0: expected {{prefix: n}}, {BUCKETS}"),
        ({"bounds": ["a", 3]}, "bounds.0: expected an integer or a number, such as 0.25"),
    ],
)
def test_a_value_of_several_forms_is_told_what_it_is_meant_to_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Attribute.model_validate({"name": "b", "kind": "integer", "bounds": [0, 9], **settings})
    assert validation_message(refused.value) == message
