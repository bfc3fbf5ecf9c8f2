"""Specs and plans of histogram releases: what they promise, cost and refuse, without a record."""

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from dpdist.errors import AccountingError, GuaranteeRefused, SpecError
from dpdist.families.histogram.plan import HistogramPlan, plan
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.privacy import accountant
from dpdist.privacy.guarantee import PML, DifferentialPrivacy

SCHEMA = {
    "attributes": [
        {"name": "age", "kind": "integer", "bounds": [17, 96], "buckets": {"width": 10}},
        {"name": "sex", "kind": "categorical", "values": ["F", "M"]},
        {"name": "edu", "kind": "integer", "bounds": [1, 24]},
        {"name": "t0", "kind": "number", "bounds": [-1, 1]},
        {"name": "t1", "kind": "number", "bounds": [-1, 1]},
        {"name": "id", "kind": "integer", "bounds": [0, 9]},
    ]
}
BASE: dict[str, Any] = {
    "kind": "histogram",
    "name": "h",
    "dataset": "d",
    "schema": SCHEMA,
    "data": {"path": "t", "minimum_records": 10_000},
    "output": {"path": "o"},
    "privacy": {"epsilon": 1, "delta": 1e-9},
    "histograms": [{"columns": ["age"]}, {"columns": ["sex", "edu"]}],
}
CURVES: dict[str, Any] = {"columns": ["t0", "t1"], "penalty": 0.01, "clip": 1.0}


def spec(**changes: Any) -> HistogramSpec:
    tree = {**BASE, **changes}
    return HistogramSpec.model_validate({name: value for name, value in tree.items() if value is not None})


def planned(**changes: Any) -> HistogramPlan:
    return plan(spec(**changes))


class TestPlan:
    @pytest.mark.parametrize("adjacency", ["add/remove", "replacement"])
    @pytest.mark.parametrize("mechanism", ["auto", "laplace", "gaussian"])
    def test_budget(self, adjacency: str, mechanism: str) -> None:
        made = planned(privacy={"epsilon": 1, "delta": 1e-9, "adjacency": adjacency, "mechanism": mechanism})
        assert made.kind == "dp"
        assert 0.98 < made.epsilon <= 1
        guarantee = made.guarantees[0]
        assert isinstance(guarantee, DifferentialPrivacy)
        assert guarantee.adjacency == adjacency
        assert guarantee.epsilon == made.epsilon == accountant.epsilon(made.event, delta=1e-9)  # type: ignore[arg-type]
        assert adjacency in made.explain()

    def test_pure(self) -> None:
        made = planned(privacy={"epsilon": 0.5})
        assert made.epsilon == pytest.approx(0.5, rel=1e-6)
        assert made.delta == pytest.approx((80 + 48) * 2.0**-60)
        assert {kind for kind, _ in made.noise} == {"laplace"}

    def test_with_entropies_the_whole_is_within_the_budget_and_near_it(self) -> None:
        entropies = {"orders": [1, 2], "share": "1/4"}
        for adjacency in ("add/remove", "replacement"):
            privacy = {"epsilon": 1, "delta": 1e-9, "adjacency": adjacency}
            made = planned(entropies=entropies, privacy=privacy)
            assert 0.97 < made.epsilon <= 1
            assert made.entropies is not None
            assert len(made.entropies.orders) == 4
            assert (made.count is None) == (adjacency == "replacement")
            assert made.entropies.records == (10_000 if made.count is None else made.count.minimum)
        assert "published bound" in made.explain()

    def test_pml(self) -> None:
        privacy = {"epsilon": 0.5, "mechanism": "pml", "adjacency": "replacement", "alpha": 0.02}
        made = planned(privacy=privacy, histograms=[{"columns": ["edu"]}])
        assert made.kind == "pml"
        assert isinstance(made.guarantees[0], PML)
        assert made.epsilon == pytest.approx(2 / made.noise[0][1], rel=1e-5)  # type: ignore[operator]
        with pytest.raises(AccountingError, match=r"alpha = 0\.02 is above 1/80"):
            planned(privacy=privacy, histograms=[{"columns": ["age"]}])
        with pytest.raises(GuaranteeRefused, match="accept_no_noise"):
            planned(privacy={**privacy, "epsilon": 4}, histograms=[{"columns": ["edu"]}])
        exact = planned(privacy={**privacy, "epsilon": 4, "accept_no_noise": True}, histograms=[{"columns": ["edu"]}])
        assert exact.is_exact
        assert exact.epsilon == math.inf
        assert exact.to_json()["epsilon"] is None
        assert exact.noise == (("laplace", None),)
        assert "exact counts" in exact.explain()
        json.dumps(exact.to_json(), allow_nan=False)

    def test_curves(self) -> None:
        made = planned(histograms=None, curves=CURVES)
        assert made.curves is not None
        assert made.curves.curves == 10_000
        assert 0.99 < made.epsilon <= 1
        assert "L2" in made.explain()

    @pytest.mark.parametrize("change", [{"clip": 1e-300}, {"clip": 1e300}, {"penalty": 1e-200}])
    def test_extreme_curves_are_refused(self, change: dict[str, float]) -> None:
        with pytest.raises(SpecError, match="choose another unit"):
            planned(histograms=None, curves={**CURVES, **change})
        for extreme in (1e-60, 1e60):
            assert 0.99 < planned(histograms=None, curves={**CURVES, "clip": extreme}).epsilon <= 1

    def test_few_records_for_entropies(self) -> None:
        data = {"path": "t", "minimum_records": 100}
        with pytest.raises(AccountingError, match=r"2% of the budget.*privacy.adjacency: replacement"):
            planned(entropies={}, data=data)
        pure = {"epsilon": 1, "adjacency": "replacement"}
        assert planned(entropies={}, data=data, privacy=pure).epsilon == pytest.approx(1, rel=1e-6)

    def test_shares(self) -> None:
        stated = [{"columns": ["age"], "share": "1/3"}, {"columns": ["sex"], "share": "2/3"}]
        made = planned(histograms=stated)
        assert made.measurement is not None
        assert made.measurement.shares == (Fraction(1, 3), Fraction(2, 3))

    @pytest.mark.parametrize("changes", [{}, {"entropies": {}}, {"histograms": None, "curves": CURVES}])
    def test_json_is_public_and_complete(self, changes: dict[str, Any]) -> None:
        made = planned(**changes)
        tree = json.loads(json.dumps(made.to_json(), allow_nan=False))
        assert tree["spec_sha256"] == made.spec.fingerprint
        assert tree["parameters"]["adjacency"] == "add/remove"
        assert tree["needs"]["task_bytes"] > 0

    def test_each_column(self) -> None:
        made = planned(histograms="each column", schema={"attributes": SCHEMA["attributes"][:3]})
        assert made.counts is not None
        assert made.counts.table_cells == (80, 2, 24)

    def test_too_many_cells_are_said_at_plan_time(self) -> None:
        wide = {"attributes": [{"name": n, "kind": "integer", "bounds": [0, 9999]} for n in "ab"]}
        with pytest.raises(SpecError, match=r"more than the limit.*\(columns 'a', 'b'\).*fewer `bins`"):
            planned(schema=wide, histograms=[{"columns": ["a", "b"]}])
        wide["attributes"][1]["bounds"] = [0, 999]
        whole = planned(schema=wide, histograms=[{"columns": ["a", "b"]}] * 4, cluster={"memory_limit": "2GiB"})
        assert whole.counts is not None
        assert whole.counts.cells == 10**7
        with pytest.raises(SpecError, match=r"counting takes .* MiB in a worker, and cluster.memory_limit is 300MiB"):
            planned(schema=wide, histograms=[{"columns": ["a", "b"]}] * 4, cluster={"memory_limit": "300MiB"})

    def test_hierarchies_are_checked(self) -> None:
        histograms = [{"columns": ["age", "sex"]}, {"columns": ["age"], "buckets": True}, {"columns": ["edu"]}]
        planned(histograms=histograms, counts={"hierarchies": [[0, 1]]})
        with pytest.raises(SpecError, match="histogram 2 is no sum of cells of histogram 0"):
            planned(histograms=histograms, counts={"hierarchies": [[0, 2]]})

    @pytest.mark.parametrize("more", [{"entropies": {}}, {"histograms": None, "curves": CURVES}])
    def test_rules_that_drop_records_make_their_number_private(self, more: dict[str, Any]) -> None:
        """Compared exactly with data.minimum_records, it told whether a described person is there."""
        privacy = {"epsilon": 1, "adjacency": "replacement", "delta": 1e-6}
        ruled = {**SCHEMA, "rules": [{"impossible": "age = 30 and sex = 'F'", "broken": "drop"}]}
        with pytest.raises(SpecError, match=r"policy `drop` of .impossible: age = 30"):
            planned(schema=ruled, privacy=privacy, **more)

    def test_entropies_need_a_delta_for_the_check(self) -> None:
        with pytest.raises(AccountingError, match=r"set privacy\.delta"):
            planned(privacy={"epsilon": 1}, entropies={})
        with pytest.raises(AccountingError, match="leave nothing for the histograms"):
            planned(privacy={"epsilon": 1, "delta": 1e-9}, entropies={"share": 0.99})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"epsilon": 1, "adjacency": "swap"}}, "add/remove"),
        ({"privacy": {"epsilon": 0}}, "greater than or equal to 0.000001"),
        ({"privacy": {"epsilon": 1, "mechanism": "gaussian"}}, "delta above 0"),
        ({"privacy": {"epsilon": 1, "alpha": 0.1}}, "goes with `mechanism: pml`"),
        ({"privacy": {"epsilon": 1, "mechanism": "pml", "alpha": 0.1}}, "adjacency: replacement"),
        ({"privacy": {"epsilon": 1, "accept_no_noise": True}}, "goes with `mechanism: pml`"),
        (
            {
                "privacy": {"epsilon": 1, "mechanism": "pml", "alpha": 0.01, "adjacency": "replacement"},
                "entropies": {"share": 0.5},
            },
            "no shares and no entropies",
        ),
        (
            {
                "privacy": {
                    "epsilon": 9,
                    "mechanism": "pml",
                    "alpha": 0.01,
                    "adjacency": "replacement",
                    "accept_no_noise": True,
                }
            },
            "two exact histograms leak without bound",
        ),
        (
            {
                "schema": {"attributes": [{"name": "sex", "kind": "categorical", "values": [1, 2], "missing": "drop"}]},
                "privacy": {"epsilon": 1, "mechanism": "pml", "alpha": 0.01, "adjacency": "replacement"},
                "histograms": [{"columns": ["sex"]}],
            },
            "every record falls in a bin, and records are dropped by 'sex'",
        ),
        ({"histograms": [{"columns": ["income"]}]}, "no column 'income'"),
        ({"histograms": [{"columns": ["age", "t1"]}]}, "histograms need bins, and 't1' is a number without"),
        ({"histograms": "each column"}, "histograms need bins, and 't0', 't1' is a number without"),
        ({"counts": {"entropies": [1], "non_negative": False}}, "set counts.non_negative"),
        ({"counts": {"entropies": [0]}}, "orders are finite and above 0"),
        ({"histograms": None, "curves": {**CURVES, "columns": ["t0", "age"]}}, "kind `number` .* not of 'age'"),
        ({"histograms": [{"columns": ["age", "age"]}]}, "names a column twice"),
        ({"histograms": [{"columns": ["age"], "share": 0.5}, {"columns": ["sex"]}]}, "for all histograms or for none"),
        ({"histograms": None}, "`histograms` or `curves`"),
        ({"curves": CURVES}, "one of the two"),
        ({"histograms": None, "curves": CURVES, "privacy": {"epsilon": 1}}, "delta above 0"),
        ({"histograms": None, "curves": CURVES, "entropies": {}}, "go with `histograms`"),
        ({"histograms": None, "curves": {**CURVES, "columns": ["t0", "edu"]}}, "not of 'edu'"),
        ({"histograms": None, "curves": {**CURVES, "times": [0, 0.5, 1]}}, "one time per column"),
        ({"histograms": None, "curves": {**CURVES, "domain": [1, 0]}}, "smaller to a larger"),
        ({"histograms": None, "curves": {**CURVES, "columns": ["t0", "t0"]}}, "curves name a column twice"),
        ({"entropies": {"of": [2]}}, "numbered from 0 to 1"),
        ({"counts": {"hierarchies": [[0]]}}, "at least two histograms"),
        ({"counts": {"hierarchies": [[0, 1], [1, 0]]}}, "at most one list"),
        ({"counts": {"total": -1}}, "not negative"),
    ],
)
def test_a_spec_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**changes)


def test_fingerprint_is_about_what_is_released() -> None:
    assert spec().fingerprint == spec(cluster={"workers": 2}, ledger="sqlite:///x").fingerprint
    assert spec().fingerprint != spec(privacy={"epsilon": 2, "delta": 1e-9}).fingerprint
