"""A resume with a spec of the same fingerprint draws the same noise, so it must be for the same statistics."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cases import MIXING, RELATIONAL

from dpdist.data.encode import ColumnEncoder
from dpdist.ledger import Ledger
from dpdist.release.run import Run, run_release
from dpdist.schema.schema import Attribute


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
    with closing(Ledger.open(first.ledger)) as ledger:
        ledger.create_dataset("people", epsilon=100, delta="1e-3")
    with Run(first) as run:
        run.steps["charge"]()
        run.steps["classes"]()
    outcome = run_release(second, resume=True)
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
