"""What a unit of protection is called where nobody names it."""

from __future__ import annotations

import pytest

from dpdist.spec.unit import UnitSpec


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("patient_id", "patient"),
        ("patientId", "patient"),
        ("Person No", "Person"),
        ("hh_id", "hh"),
        ("household", "household"),
        ("hid", "hid"),  # no unit is called h
        ("pid", "pid"),
        ("id", "unit"),
        ("größe_id", "unit"),
    ],
)
def test_a_unit_is_called_after_its_column(column: str, name: str) -> None:
    assert UnitSpec(by=column, at_most=1).name == name
