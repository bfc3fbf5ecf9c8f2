"""Specs of series: which periods there are, and what each of them is."""

import json
from collections.abc import Callable
from copy import deepcopy
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest
from releases import SCHEMA, table

from dpdist.errors import SpecError
from dpdist.families.base.registry import make_plan
from dpdist.privacy import accountant
from dpdist.privacy.events import Composed
from dpdist.spec.reader import load, load_public

SERIES: dict[str, Any] = {
    "every": "month",
    "first": "2026-02",
    "roll_up": ["quarter", "year"],
    "shares": {"month": 0.7, "quarter": 0.15, "year": 0.15},
    "skip": ["2026-05"],
    "versions": {"2026-04": 2, "2026-q1": 3},
}


def births(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "synthesis",
        "name": "births",
        "dataset": "births",
        "schema": SCHEMA,
        "data": {"path": "births/{date:%Y-%m}.csv", "minimum_records": 2_000},
        "output": {"path": "made"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "series": deepcopy(SERIES | changes),
    }


def of(period: str, **changes: Any) -> Any:
    return load(births(**changes), {"series.period": period})


def test_the_periods_that_have_ended() -> None:
    spec = load(births(), day=date(2026, 6, 30))
    assert (spec.name, spec.series.period) == ("births-2026-04-v2", "2026-04")  # type: ignore[attr-defined]
    ended = list(spec.series.ended(date(2027, 1, 1)))  # type: ignore[attr-defined]
    months = [f"2026-{month:02d}" for month in range(2, 13) if month != 5]
    assert [period for period in ended if period in months] == months
    after = {period: ended[k - 1] for k, period in enumerate(ended) if period not in months}
    assert after == {f"2026-q{q}": f"2026-{3 * q:02d}" for q in range(1, 5)} | {"2026-year": "2026-q4"}
    assert load(births(skip=[]), {"date": "2026-02-01"}).name == "births-2026-02"  # none has ended: the first


def test_a_period_is_a_spec_of_its_own() -> None:
    month, quarter, year = of("2026-06"), of("2026-q2"), of("2026-year")
    assert [one.output.path for one in (month, quarter, year)] == ["made/2026-06", "made/2026-q2", "made/2026-year"]
    assert quarter.data.path == ("births/2026-04.csv", "births/2026-06.csv")
    assert (month.records, quarter.data.minimum_records, len(year.data.paths)) == (2_000, 4_000, 10)
    assert month.model.evidence.paths == ("made/????-[01][0-9]*",)
    assert quarter.model.evidence.sum == ("made/2026-04-v2", "made/2026-06")
    assert year.model.evidence.larger == ("made/2026-q1-v3", "made/2026-q2", "made/2026-q3", "made/2026-q4")
    again = load_public(month.public(), month.table)
    assert (again.name, again.privacy) == (month.name, month.privacy)
    other = of("2026-06", skip=[], versions={})  # what is said of other periods changes no attempt of this one
    assert other.fingerprint == month.fingerprint != of("2026-07").fingerprint


def test_what_is_charged_for_a_record_over_all() -> None:
    """In its month, quarter and year it loses what the spec says, and no less by much."""
    events = [make_plan(of(period)).event for period in ("2026-03", "2026-q1", "2026-year")]
    together = accountant.epsilon(Composed(tuple(event for event in events if event is not None)), delta=1e-9)
    assert 0.998 < together <= 1


def test_the_plan_shows_the_year_and_finds_shares() -> None:
    plan = make_plan(of("2026-03"))
    (year,) = (fact for fact in plan.errors() if fact.title == "Year")
    assert year.numbers["year"] < year.numbers["quarter"] < year.numbers["month"] < year.numbers["change"]
    from dpdist.families.synthesis.series import best_shares, worth

    for priorities, dear in (({}, None), ({"year": 50}, "year"), ({"month": 50}, "month")):
        shares = best_shares(of("2026-03", priorities=priorities).series)
        assert sum(shares.values()) == 1
        assert dear is None or shares[dear] > 0.7
    assert worth(shares)["quarter"] == shares["quarter"] + shares["month"] / 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"series.shares": {"month": 0.7, "quarter": 0.3}}, "one for month, quarter, year, with the sum 1"),
        ({"series.shares.month": 0.8}, "with the sum 1"),
        ({"series.period": "2026-05"}, "no period of the series"),
        ({"series.period": "2026-13"}, r"period: expected a period, such as 2026-03, 2026-q1 or 2026-year$"),
        ({"series.versions": {"2026-q5": 2}}, "expected a period, such as 2026-03"),
        ({"series.skip": ["2026-3"]}, "expected a month, such as 2026-03"),
        ({"series.versions": {"2026-05": 2}}, "versions, skip: 2026-05 is no period"),
        ({"series.versions": {"2025-q4": 2}}, "versions, skip: 2025-q4 is no period"),
        ({"series.skip": ["2026-01"]}, "versions, skip: 2026-01 is no period"),
        ({"data.path": ["{date:%Y-%m}.csv", "births.csv"]}, "write the month as"),
        ({"data": "births.csv"}, "as sections"),
        ({"data.path": 5}, "write the month as"),
        ({"series.first": "0000-01"}, "first: expected a month, such as 2026-03"),
        ({"name": ""}, "name"),
        ({"data.path": "{date:%m}.csv"}, "write the month as"),
        ({"model.evidence.previous": ["made/x"]}, "names its own earlier releases"),
        ({"privacy.epsilon": "much"}, "expected `epsilon` and `delta`"),
        ({"privacy.delta": float("nan")}, "expected `epsilon` and `delta`"),
        ({"privacy.epsilon": 1e-6, "privacy.delta": 0.09}, "epsilon"),  # nothing is left of a share
        ({"date": "yesterday"}, "expected a day"),
        ({"unit": {"by": "id", "at_most": 2}}, "a unit may have records in several months"),
    ],
)
def test_series_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(births(), changes)
    resolved = of("2026-06").model_dump(mode="json", by_alias=True, exclude_none=True)
    with pytest.raises(SpecError, match="a larger epsilon than its share"):
        load(resolved, {"privacy.epsilon": 0.9})


def test_what_is_due_is_released_by_the_command(tmp_path: Path, dpdist: Callable[..., Any]) -> None:
    """A month each as it comes, and once; what waits is said."""
    tree = births(first="2026-01", roll_up=[], shares={"month": 1}, skip=[], versions={})
    tree |= {"schema": "schema.yaml", "model": {"rounds": 1, "balance": 0}, "cluster": {"mode": "in-process"}}
    tree["privacy"] = {"epsilon": 1, "delta": 0.0001, "accuracy_share": 0}
    (tmp_path / "schema.yaml").write_text(json.dumps(SCHEMA))
    (tmp_path / "spec.yaml").write_text(json.dumps(tree))
    (tmp_path / "births").mkdir()
    assert dpdist("ledger", "create", "births", "--epsilon", "2", "--delta", "0.001").code == 0
    for day, made in (("2026-02-02", ["2026-01"]), ("2026-02-03", []), ("2026-03-02", [])):
        if made:
            pyarrow.csv.write_csv(table(2_500), tmp_path / "births" / "2026-01.csv")
        found = dpdist("release", "spec.yaml", "--json", "--set", f"date={day}")
        assert found.code == 0, found.err
        assert [Path(one["uri"]).name for one in json.loads(found.out)] == made
    assert "births-2026-02 waits for its table" in found.err
    assert dpdist("infer", "made/2026-01", "count").code == 0
    assert dpdist("infer", "made", "count").code != 0  # one release is no series
