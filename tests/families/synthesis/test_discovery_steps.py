"""What a synthesis finds before it learns: one record is in one cell of each histogram."""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of
from hypothesis import given
from hypothesis import strategies as st

from dpdist.data.arrow import ArrowRecords
from dpdist.data.inputs import table_source
from dpdist.data.table import open_table
from dpdist.families.base.values import named_values
from dpdist.families.synthesis import discovery_steps
from dpdist.families.synthesis.discovery import Discovery
from dpdist.families.synthesis.discovery_steps import count_multiples
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import undeclared

SCHEMA = Schema.model_validate(
    {"attributes": [{"name": "v", "kind": "number", "bounds": [0, 9], "bins": {"count": 3}}]}
)


def counted(array: pa.Array) -> list[int]:
    table = pa.table({"v": array})
    found = count_multiples(ArrowRecords(SCHEMA, table, [(0, len(table))], "0"), 0, ["v"])
    return [int(count) for count in found[0]]


@given(st.from_regex(r"\A-?[0-9]{1,3}\.?[0-9]{0,3}\Z") | st.text(max_size=6))
def test_a_record_counts_at_most_once(text: str) -> None:
    assert sum(counted(pa.array([text]))) <= 1


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["5", "5.", "5.0", "5.00", "-3"], [5, 0]),
        (["5.5", "5.05", "5.50", "-0.25"], [0, 4]),
        (["5.125", "", "1e5", ".5", "x"], [0, 0]),
    ],
)
def test_whole_numbers_and_cents(texts: list[str], expected: list[int]) -> None:
    assert counted(pa.array(texts)) == expected


def test_floats_are_read_as_they_are_written() -> None:
    assert counted(pa.array(np.array([1.0, 2.5, 2.25, 1 / 3]))) == [1, 2]


ATTRIBUTES = [undeclared("text", "text"), undeclared("whole", "integer"), undeclared("real", "number")]
VALUES = {"text": ["a", "b", "c", None], "whole": [0, 5, 300, None], "real": ["5.00", "2.50", "0.125", "-7", None]}


def measured(
    records: list[tuple[Any, ...]], folder: Path, monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any]
) -> tuple[dict[str, tuple[Any, float]], Discovery]:
    """The exact counts of each histogram and their deviations; what is seen of them is the `outcome`, once set."""
    spec = load(
        {
            "kind": "synthesis",
            "name": "found",
            "dataset": "people",
            "schema": {"attributes": ATTRIBUTES},
            "discover": {"columns": list(VALUES)},
            "data": {"path": str(folder / "t.parquet"), "minimum_records": 1, "extra_columns": "ignore"},
            "output": {"path": str(folder / "out")},
            "privacy": {"epsilon": 8, "delta": 1e-3},
        }
    )
    columns = zip(VALUES, zip(*records, strict=True), strict=True)
    types = {"text": pa.string(), "whole": pa.int64(), "real": pa.string()}
    pq.write_table(pa.table({name: pa.array(values, types[name]) for name, values in columns}), folder / "t.parquet")
    found: dict[str, tuple[Any, float]] = {}

    def seen(counts: Any, *, how: tuple[str, float], noise: Any, name: str) -> Any:
        found[name] = np.array(counts), how[1]
        return outcome.setdefault(name, np.array(counts) * 100)

    def named(attempt: Any, table: Any, names: Any, how: tuple[str, float, int]) -> Any:
        values, absent = named_values(attempt, table, names, (how[0], how[1], -(10**9)))
        held = Counter(record[0] for record in records if record[0] is not None)
        assert set(held) == {value for _, value, _ in values}
        found["values"] = np.array([held[value] for value in VALUES["text"][:-1]]), how[1]
        return outcome.setdefault("values", values), absent

    monkeypatch.setattr(discovery_steps, "noisy_counts", seen)
    monkeypatch.setattr(discovery_steps, "named_values", named)
    attempt = attempt_of(spec, folder)
    attempt.open = lambda schema: open_table(table_source(spec), schema)
    discovery_steps._found(attempt)
    return found, attempt.plan.discovery


def test_one_record_moves_all_histograms_by_what_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    kinds = list(product(*VALUES.values()))
    records = [kinds[i] for i in rng.integers(0, len(kinds), 40)]
    outcome: dict[str, Any] = {}
    before, noise = measured(records, tmp_path, monkeypatch, outcome)
    charged = noise.spent(1, 1 + 2 * 2, 1)  # a step is asked of the number alone
    most = 0.0
    for record in kinds:
        after, _ = measured([*records, record], tmp_path, monkeypatch, outcome)
        assert after.keys() == before.keys()
        moved = sum(float(((after[name][0] - before[name][0]) ** 2).sum()) / before[name][1] ** 2 for name in before)
        assert moved <= charged
        most = max(most, moved)
    assert most >= 0.99 * charged
