"""Records that count by their weights: what a record costs is enumerated, and partitions change no bit."""

import json
import math
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cases import CASES
from releases import KEY, fund, placed
from scipy.special import ndtr

from dpdist.data.arrow import PartitionedTable, TableInMemory
from dpdist.data.inputs import input_of
from dpdist.data.operators import gather_operator
from dpdist.data.report import RowReport, check_weights
from dpdist.data.weighted import WeightedRecords, copies_of
from dpdist.errors import ColumnMismatch, OutOfDomain, SpecError
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import run_evaluation
from dpdist.families.base.graph import run_pass, table_pass
from dpdist.families.base.registry import make_plan
from dpdist.families.base.rehearsal import EXECUTOR
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import run_release
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.unit import WeightSpec
from dpdist.spec.validation import change

BITS: dict[str, Any] = {"attributes": [{"name": n, "kind": "categorical", "values": [0, 1]} for n in "ab"]}
WEIGHT = {"by": "w", "at_most": 5}
QUERIES = [{"columns": list(columns)} for columns in ("a", "b", "ab")]
WEIGHTS = [0, 1, 2, 2.5, 3, 5, 0.4, 0.5]


def table(weights: list[Any] = WEIGHTS, rows: int = 400) -> pd.DataFrame:
    """Rows with these weights in turn."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, 2, rows)
    columns = {"a": first, "b": first ^ (rng.random(rows) < 0.2)}
    return pd.DataFrame(columns | {"w": [weights[i % len(weights)] for i in range(rows)]})


def spec(folder: Path, kind: str = "histogram", **changes: Any) -> ReleaseSpec:
    tree = placed(folder, records=60) | {"kind": kind, "schema": BITS, "weight": WEIGHT}
    tree |= {"privacy": {"epsilon": 1, "delta": 1e-6}}
    return load(tree | ({"histograms": QUERIES} if kind == "histogram" else {}) | changes)


def funded(folder: Path) -> closing[Books]:
    """A ledger with the data set."""
    url = f"sqlite:///{folder}/ledger.db"
    fund(url, epsilon="100", delta="1e-3")
    return closing(Books.open(url))


# --- what a record counts as ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [False, True])
def test_weights_are_rounded_and_cut(texts: bool) -> None:
    given = ["3", None, "-1", "2.5", "x", "nan", "1e9", "0.4"] if texts else [3, None, -1, 2, 0, 7, 5, 6]
    array = pa.array(given, pa.large_string() if texts else pa.int64())
    copies, without, above = copies_of(array, 5)
    if texts:
        assert copies.tolist() == [3, 0, 0, 3, 0, 0, 5, 0]
        assert without.tolist() == [False, True, True, False, True, True, False, False]
        assert above.tolist() == [False] * 6 + [True, False]
    else:
        assert copies.tolist() == [3, 0, 0, 2, 0, 5, 5, 5]
        assert without.tolist() == [False, True, True] + [False] * 5
        assert above.tolist() == [False] * 5 + [True, False, True]


@pytest.mark.parametrize(("partitions", "batch_rows"), [(1, 7), (3, 1000), (16, 1)])
def test_a_weighted_table_is_that_of_repeated_rows(partitions: int, batch_rows: int, tmp_path: Path) -> None:
    frame = table()
    frame.to_parquet(tmp_path / "table.parquet", row_group_size=50)
    made = spec(tmp_path)
    assert made.weight is not None
    opened = input_of(made).open(made.table, partitions=partitions, beside="w")
    records = WeightedRecords(opened.on(EXECUTOR).sides[0], made.weight)
    graph = table_pass(EXECUTOR, records, gather_operator(), name="all", batch_rows=batch_rows)
    codes, report = EXECUTOR.compute([graph])[0]
    copies = np.floor(frame["w"].to_numpy() + 0.5).astype(int)
    repeated = frame.loc[frame.index.repeat(copies)]
    assert [column.tolist() for column in codes] == [repeated["a"].tolist(), repeated["b"].tolist()]
    assert (report.rows, report.kept) == (400, np.count_nonzero(copies))


def test_rows_that_a_policy_drops_count_nothing(tmp_path: Path) -> None:
    frame = table().astype({"a": "Int64"})
    frame.loc[::3, "a"] = None
    frame.to_parquet(tmp_path / "table.parquet")
    dropping = {"attributes": [{**BITS["attributes"][0], "missing": "drop"}, BITS["attributes"][1]]}
    made = spec(tmp_path, schema=dropping)
    assert made.weight is not None
    records = WeightedRecords(input_of(made).open(made.table, beside="w").on(EXECUTOR).sides[0], made.weight)
    codes, _ = run_pass(records, gather_operator())
    kept = frame.dropna()
    assert len(codes[0]) == int(np.floor(kept["w"] + 0.5).sum())


# --- what a record costs ----------------------------------------------------------------------------------------------


def test_noise_covers_the_heaviest_record_and_is_attained(tmp_path: Path) -> None:
    """Neighbours differ by a record of any weight up to the bound: its loss is enumerated over values and weights."""
    pure = make_plan(spec(tmp_path, privacy={"epsilon": 1}))
    assert isinstance(pure, HistogramPlan)
    assert pure.measurement is not None
    records = [(a, b, w) for a in (0, 1) for b in (0, 1) for w in range(6)]

    def changes(a: int, b: int, w: int) -> list[np.ndarray]:
        return [w * np.eye(2)[a], w * np.eye(2)[b], w * np.eye(4)[2 * a + b]]

    def loss(record: tuple[int, int, int]) -> float:
        scales = pure.measurement.scales  # type: ignore[union-attr]
        return float(sum(np.abs(c).sum() / s for c, s in zip(changes(*record), scales, strict=True)))

    assert 0.99 < max(map(loss, records)) <= pure.epsilon == 1
    gaussian = make_plan(spec(tmp_path, privacy={"epsilon": 1, "delta": 1e-6, "mechanism": "gaussian"}))
    assert isinstance(gaussian, HistogramPlan)
    scales = [scale for _, scale in gaussian.noise]
    mu = max(
        math.sqrt(sum((c**2).sum() / s**2 for c, s in zip(changes(*record), scales, strict=True))) for record in records
    )
    attained = ndtr(mu / 2 - 1 / mu) - math.e * ndtr(-mu / 2 - 1 / mu)
    assert 0.99 * 1e-6 < attained <= 1e-6


def test_a_synthesis_gives_each_unit_of_weight_a_fifth(tmp_path: Path) -> None:
    heavy, once = (make_plan(spec(tmp_path, "synthesis", weight=w)) for w in (WEIGHT, None))
    assert isinstance(heavy, SynthesisPlan)
    assert isinstance(once, SynthesisPlan)
    assert heavy.choices.mu == pytest.approx(once.choices.mu / 5, rel=1e-9)
    assert heavy.guarantees == once.guarantees  # of a record
    public = make_plan(spec(tmp_path, "synthesis", weight=WEIGHT | {"total": 10_000_000}))
    assert isinstance(public, SynthesisPlan)
    assert public.expected.noise < heavy.expected.noise / 1000
    total = make_plan(spec(tmp_path, "synthesis", weight=WEIGHT | {"total": 240}))
    assert isinstance(total, SynthesisPlan)
    assert total.noise_at(1) == pytest.approx(once.expected.error)  # 60 records that count once add up to 60, not 240


def test_plans_say_what_the_bound_costs(tmp_path: Path) -> None:
    for kind in ("histogram", "synthesis"):
        said = make_plan(spec(tmp_path, kind, weight=WEIGHT | {"above": "clip"})).explain()
        assert "a record counts as its weight (column 'w'), 5 at most, which heavier ones count as" in said
        assert "by weight.at_most:" in said
        assert "for 10" in said


# --- releases ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("kind", ["histogram", "synthesis"])
def test_a_release_counts_weights(kind: str, tmp_path: Path) -> None:
    """At a high epsilon the released totals are those of the weights; the records stand for equal shares of them."""
    frame = table(rows=40_000)
    frame.to_parquet(tmp_path / "table.parquet")
    with funded(tmp_path):
        pass
    made = spec(tmp_path, kind, privacy={"epsilon": 20, "delta": 1e-6})
    run_release(made, fixed_key=KEY)
    true = np.floor(frame["w"] + 0.5).groupby(frame["a"]).sum()
    if kind == "histogram":
        found = pd.read_parquet(tmp_path / "release").query("of == 'a'")["value"].to_numpy()
    else:
        manifest = json.loads((tmp_path / "release" / "_manifest.json").read_text())
        released = pd.read_parquet(tmp_path / "release")
        assert list(released.columns) == ["a", "b"]
        total = manifest["parameters"]["accuracy"]["records"]
        found = released["a"].value_counts(normalize=True).sort_index().to_numpy() * total
    np.testing.assert_allclose(found, true, rtol=0.05)
    done = run_evaluation(
        Request(
            release=str(tmp_path / "release"),
            against=(str(tmp_path / "table.parquet"),),
            output=str(tmp_path / "page"),
            train=60,
            test=60,
            attacks=False,
            cluster="threads",
        )
    )
    assert done.verdicts


def test_tables_that_are_no_files_are_weighted_too(tmp_path: Path) -> None:
    """Partitions of a table in memory, or of a cluster, are read where they are held."""
    frame = table(rows=3_000)
    frame.to_parquet(tmp_path / "table.parquet")
    with funded(tmp_path):
        pass
    rows, found = pa.Table.from_pandas(frame), set()
    parts = PartitionedTable([rows.slice(0, 1_000), rows.slice(1_000)], lambda part: part, EXECUTOR, "the frame")
    given: dict[str, Any] = {"file": None, "memory": TableInMemory(rows, "the table"), "parts": parts}
    for name, held in given.items():
        made = spec(tmp_path, name=name, output={"path": str(tmp_path / name)})
        run_release(made, fixed_key=KEY, input=held, executor=None if held is None else EXECUTOR)
        found |= {path.read_bytes() for path in (tmp_path / name).rglob("part*.parquet")}
    assert len(found) == 1


def test_a_sample_has_each_record_once_by_weight(tmp_path: Path) -> None:
    """Copies of a record among what models learn from and what they are tested with would be known to them."""
    rows = 24_000
    table([0, 1, 2, 5], rows).assign(a=0, b=[0, 0, 0, 1] * (rows // 4)).to_parquet(tmp_path / "table.parquet")
    made = spec(tmp_path)
    assert made.weight is not None
    (opened,) = input_of(made).open(made.table, partitions=3, beside="w").on(EXECUTOR).sides
    for thinned in (KeyRef.fixed(KEY), KeyRef.fixed(KEY[::-1])):
        codes, report = run_pass(WeightedRecords(opened, made.weight, thinned=thinned), gather_operator())
        heavy = int(codes[1].sum())
        assert heavy == rows // 4
        assert len(codes[1]) - heavy == pytest.approx(rows // 4 * (1 + 2) / 5, abs=6 * math.sqrt(rows // 4 * 0.4))
        assert report.kept == rows * 3 // 4


def test_an_evaluation_tells_no_record_by_its_copies(tmp_path: Path) -> None:
    """Values that say nothing about each other: a model that has seen copies of the records would predict them."""
    rng, rows = np.random.default_rng(5), 1_500
    tops = {"a": 1, "b": 19, "c": 19, "d": 19}
    schema = {"attributes": [{"name": n, "kind": "integer", "bounds": [0, top]} for n, top in tops.items()]}
    frame = pd.DataFrame({n: rng.integers(0, top + 1, rows) for n, top in tops.items()} | {"w": 40})
    frame.loc[0, "w"] = 80
    frame.to_parquet(tmp_path / "table.parquet")
    with funded(tmp_path):
        pass
    made = spec(tmp_path, "synthesis", schema=schema, weight={"by": "w", "at_most": 80}, synthesis={"records": 6_000})
    run_release(change(made, {"privacy.epsilon": 5}), fixed_key=KEY)
    request = Request(
        release=made.output.path,
        against=(str(tmp_path / "table.parquet"),),
        output=str(tmp_path / "page"),
        target="a",
        attacks=False,
    )
    sections = json.loads(Path(run_evaluation(request).figures).read_text())["sections"]
    said = {name: section["verdict"] for name, section in sections.items()}
    (right,) = re.findall(r"right in ([0-9.]+)\W% of cases, the same", said["models"])
    assert float(right) < 65, said["models"]
    assert "less than 0.1" not in said["marginals"]
    assert "sampled" in said["coverage"]


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "changes", "message"),
    [
        ([1, 2, 9], {}, r"column 'w': weights above 5 \(weight.at_most\)"),
        ([1, 2, -1], {}, "column 'w': records without a weight of 0 or more"),
        ([1, 2, None], {}, "column 'w': records without a weight"),
        ([1, 2, 9], {"above": "clip"}, ""),
        ([1, 2, None], {"missing": "drop"}, ""),
    ],
)
def test_weights_that_are_not_as_declared(
    weights: list[Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    table(weights).to_parquet(tmp_path / "table.parquet")
    with funded(tmp_path) as ledger:
        made = spec(tmp_path, weight=WEIGHT | changes)
        if not message:
            run_release(made, fixed_key=KEY)
            return
        with pytest.raises(OutOfDomain, match=message) as caught:
            run_release(made, fixed_key=KEY)
        assert not any(str(number) in str(caught.value) for number in (133, 134))
        (attempt,) = ledger.show("people").attempts
        assert attempt.state != "committed"  # the refusal is an answer about the table: its charge stays


def test_the_custodian_is_told_before_a_release(tmp_path: Path) -> None:
    """Under a contract weights are looked at once, by its check: no release is refused for them."""
    table([1, 2, 9]).to_parquet(tmp_path / "table.parquet")
    tree: dict[str, Any] = {
        "schema": BITS,
        "data": {"path": str(tmp_path / "table.parquet")},
        "minimum_records": 60,
        "epsilon": 10,
        "delta": "1e-3",
        "weight": WEIGHT,
    }
    found = check_input(Contract.model_validate(tree))
    assert any("weights above 5" in problem for problem in found.problems)
    assert not check_input(Contract.model_validate(tree | {"weight": {"by": "w", "at_most": 9}})).problems
    contract = Contract.model_validate(tree | {"weight": {"by": "w", "at_most": 9}})

    def departures(**weight: Any) -> str:
        return "; ".join(contract.departures(spec(tmp_path, weight={"by": "w", **weight}), event=None))

    assert not departures(at_most=9)
    assert not departures(at_most=20)
    assert not departures(at_most=5, above="clip")
    assert "write that, or `above: clip`" in departures(at_most=5)
    assert "`missing: refuse`" in departures(at_most=9, missing="drop")
    # how many records there are is about all of them, as releases without weights count them
    table([1, 0, None]).to_parquet(tmp_path / "table.parquet")
    some = tree | {"weight": WEIGHT | {"missing": "drop"}, "number_of_records": 400}
    assert not check_input(Contract.model_validate(some)).problems
    some |= {"number_of_records": 134}
    assert any("number_of_records" in problem for problem in check_input(Contract.model_validate(some)).problems)
    none = Contract.model_validate({name: value for name, value in tree.items() if name != "weight"})
    assert none.departures(spec(tmp_path), event=None) == [
        "weight: the contract has no column of weights: leave it out"
    ]
    assert "weight" not in json.loads(none.text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": {"by": "a", "at_most": 5}}, "'a' is an attribute of the schema"),
        ({"weight": {"by": "w", "at_most": 0}}, "at_most"),
        ({"unit": {"by": "id", "at_most": 2}}, "not for a `unit`"),
        ({"privacy": {"epsilon": 1, "adjacency": "replacement"}}, "weight: statistics under add/remove"),
    ],
)
def test_specs_that_have_no_charge(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        spec(tmp_path, **changes)


def test_other_families_refuse_weights(tmp_path: Path) -> None:
    for case in CASES:
        made = case.spec(tmp_path)
        if not made.weighs:
            with pytest.raises(SpecError, match="weight: this family"):
                change(made, {"weight": WEIGHT})


def test_a_column_of_another_type_costs_nothing(tmp_path: Path) -> None:
    frame = table()
    frame["w"] = frame["w"] > 1
    frame.to_parquet(tmp_path / "table.parquet")
    with funded(tmp_path) as ledger:
        with pytest.raises(ColumnMismatch, match="weights as integers or floats"):
            run_release(spec(tmp_path), fixed_key=KEY)
        assert not ledger.show("people").attempts


def test_what_is_checked_is_what_was_met() -> None:
    report = RowReport(10, 8, np.zeros((0, 5), np.int64), np.zeros(0, np.int64), weightless=1, heavy=1)
    with pytest.raises(OutOfDomain, match=r"(?s)without a weight.*above 5"):
        check_weights(report, WeightSpec(by="w", at_most=5))
    check_weights(report, WeightSpec(by="w", at_most=5, missing="drop", above="clip"))
