"""A resume with a spec of the same fingerprint draws the same noise, so it must be for the same statistics."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cases import HISTOGRAM, MIXING, RELATIONAL

from dpdist.data.encode import ColumnEncoder
from dpdist.errors import ReleaseConflict
from dpdist.ledger import Books
from dpdist.lifecycle.run import Run, run_release
from dpdist.spec.contract import Contract
from dpdist.spec.schema import Attribute


def test_classes_in_another_order_are_the_same_release(tmp_path: Path) -> None:
    """What was confirmed of one class was taken for another one: 100 records were released as if they were 2,000."""
    table = MIXING.table(7_000)
    names = table["class"].to_pylist()
    few = [i for i, name in enumerate(names) if name == "high"][:100]
    pq.write_table(table.take(few + [i for i, name in enumerate(names) if name == "low"]), tmp_path / "table.parquet")
    each = {"minimum": 2_000, "records": 800}
    first, second = (
        MIXING.spec(tmp_path, mixing__classes={name: each for name in order})
        for order in (("low", "high"), ("high", "low"))
    )
    with closing(Books.open(first.ledger)) as ledger:
        ledger.create_dataset("people", epsilon=100, delta="1e-3")
    with Run(first) as run:
        run.steps["charge"]()
        run.steps["classes"]()
    outcome = run_release(second, attempt="resume")
    assert outcome.parameters["classes_left_out"] == ["high"]


@pytest.mark.parametrize("order", [("old", "children"), ("children", "old")])
def test_kinds_in_another_order_are_the_same_columns(tmp_path: Path, order: tuple[str, str]) -> None:
    """The noise of one column was drawn for the other one, and the difference of both was exact."""
    conditions = {"children": "age < 15", "old": "age >= 65"}
    spec = RELATIONAL.spec(tmp_path, members__kinds={name: conditions[name] for name in order})
    assert spec.layout.first.names[1:4] == ("(size)", "(of children)", "(of old)")  # type: ignore[attr-defined]


def test_aliases_in_another_order_have_the_same_meaning() -> None:
    """Two of them are one text in a CSV file, where blanks are removed."""
    aliases = {"a": "x", "a ": "y"}
    for order in (aliases, dict(reversed(aliases.items()))):
        attribute = Attribute(name="c", kind="categorical", values=("x", "y"), aliases=order)
        assert ColumnEncoder(attribute, strip=True)._known_texts["a"] == 1


def test_a_resume_reads_the_same_store(tmp_path: Path) -> None:
    """What an object is, the store says alone: one that lies gave the same noise for records that are known."""
    spec, other = (
        HISTOGRAM.spec(tmp_path, **storage) for storage in ({}, {"data__storage__endpoint_url": "http://127.0.0.1:1"})
    )
    HISTOGRAM.project(tmp_path)
    with Run(spec) as run:
        run.steps["charge"]()
    with pytest.raises(ReleaseConflict, match=r"another data\.storage"):
        run_release(other, attempt="resume")
    contract = Contract.model_validate(
        {
            "schema": spec.table,
            "data": {"path": spec.data.path},
            "minimum_records": HISTOGRAM.rows,
            "epsilon": 1,
            "delta": "1e-6",
        }
    )
    assert not contract.departures(spec, event=None)
    assert contract.departures(other, event=None) == [
        "data.storage.endpoint_url: the files are those of another store: leave it out, or declare it"
    ]
