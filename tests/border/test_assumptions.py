"""What a release may assume of its readers is the custodian's choice: with another alpha a bound on leakage is none."""

from __future__ import annotations

from typing import Any

import pytest

from dpdist.errors import SpecError
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load

SCHEMA = {
    "attributes": [
        {"name": "ill", "kind": "categorical", "values": ["yes", "no"]},
        {"name": "sex", "kind": "categorical", "values": ["f", "m"]},
    ]
}
TERMS = {
    "schema": SCHEMA,
    "data": {"path": "people.csv"},
    "minimum_records": 1000,
    "number_of_records": 1000,
    "guarantees": ["pml"],
    "epsilon": 1,
    "delta": "1e-6",
    "pml": "0.7",
}


def _departures(alpha: float, columns: list[str], **declared: float) -> list[str]:
    privacy: dict[str, Any] = {"mechanism": "pml", "adjacency": "replacement", "epsilon": 0.7, "alpha": alpha}
    spec = load(
        {
            "kind": "histogram",
            "name": "counts",
            "dataset": "people",
            "schema": SCHEMA,
            "data": {"path": "people.csv", "minimum_records": 1000},
            "output": {"path": "out"},
            "privacy": privacy | {"accept_no_noise": True},
            "histograms": [{"columns": columns}],
        }
    )
    return Contract.model_validate({**TERMS, "alpha": declared}).departures(spec, event=None)


def test_alpha_is_the_contracts() -> None:
    """One ill person in 1000 was published exactly, by a spec that assumes that half of all are ill."""
    assert _departures(0.5, ["ill"])
    assert _departures(0.5, ["ill"], ill=0.0005, sex=0.4)
    assert not _departures(0.4, ["sex"], ill=0.0005, sex=0.4)
    assert _departures(0.2, ["ill", "sex"], ill=0.4, sex=0.4)  # they may depend on each other


@pytest.mark.parametrize("declared", [{"age": 0.5}, {"ill": 0.0}, {"ill": 1.5}])
def test_alpha_of_a_contract_is_a_probability_of_an_attribute(declared: dict[str, float]) -> None:
    with pytest.raises((SpecError, ValueError), match="alpha"):
        Contract.model_validate({**TERMS, "alpha": declared})
