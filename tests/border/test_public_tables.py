"""The public tables of a contract are below the folders that it names."""

from pathlib import Path
from typing import Any

import pytest

from dpdist.spec.contract import Contract
from dpdist.spec.reader import load

SCHEMA = {
    "attributes": [
        {"name": "ill", "kind": "categorical", "values": ["yes", "no"]},
        {"name": "sex", "kind": "categorical", "values": ["f", "m"]},
    ]
}


def _departures(folder: Path, prior: str) -> list[str]:
    data: dict[str, Any] = {"path": f"{folder}/private/2026.csv", "minimum_records": 1000}
    spec = load(
        {
            "kind": "synthesis",
            "name": "people",
            "dataset": "people",
            "schema": SCHEMA,
            "data": data,
            "output": {"path": "out"},
            "privacy": {"epsilon": 1, "delta": 1e-9},
            "model": {"prior": {"public": "Published by the office of statistics, on its site", "path": prior}},
        }
    )
    terms = {"schema": SCHEMA, "minimum_records": 1000, "epsilon": 1, "delta": "1e-6"}
    admitted = {"path": data["path"], "later": [f"{folder}/private/*.csv"]}
    contract = Contract.model_validate({**terms, "data": admitted, "public_tables": [f"{folder}/public/*"]})
    return contract.departures(spec, event=None)


@pytest.mark.parametrize("prior", ["public/../private/2025.csv", "public/old/../../private/2025.csv"])
def test_no_way_leads_out_of_them(tmp_path: Path, prior: str) -> None:
    """The private table of the year before was read without noise, by way of the public folder."""
    assert any("public_tables" in departure for departure in _departures(tmp_path, f"{tmp_path}/{prior}"))
    assert not _departures(tmp_path, f"{tmp_path}/public/old/2025.csv")
