"""Histograms by period of units that seldom change: what a unit's history costs is enumerated."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, dropwhile, pairwise, product, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import Case
from pydantic import ValidationError

from dpdist.data.arrow import TableInMemory
from dpdist.data.operators import gather_operator
from dpdist.errors import ContractBroken, SpecError
from dpdist.families.base.bounding import bounded
from dpdist.families.base.graph import run_pass
from dpdist.families.base.registry import family_of, make_plan
from dpdist.families.base.rehearsal import EXECUTOR
from dpdist.families.histogram.panel import Panel
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.run import run_release
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import audit
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.contract import kept_contract
from dpdist.spec.schema import Schema
from dpdist.spec.unit import Following

KEY = KeyRef.fixed("00112233445566778899aabbccddeeff" * 2)
PERIODS, ROWS = 6, 2_400


def schema(periods: int) -> dict[str, Any]:
    return {
        "attributes": [
            {"name": "month", "kind": "integer", "bounds": [0, periods - 1]},
            {"name": "job", "kind": "categorical", "values": ["no", "part", "full"]},
            {"name": "sex", "kind": "categorical", "values": ["f", "m"]},
        ]
    }


def workers(rows: int) -> pa.Table:
    """Persons over the months: some change their job once, some often, some come late, pause or go, in any order."""
    rng, people = np.random.default_rng(4), rows // PERIODS
    month, person = np.tile(np.arange(PERIODS), people), np.repeat(np.arange(people), PERIODS)
    job = (person + (month >= person % 11)) % 3
    job = np.where(person % 9 == 0, rng.integers(0, 3, rows), job)
    kept = rng.permutation(np.flatnonzero(rng.random(rows) < 0.97))
    names = np.array(["no", "part", "full"])[job], np.array(["f", "m"])[person % 2]
    columns = {"month": month, "job": names[0], "sex": names[1], "person": person}
    return pa.table({name: column[kept] for name, column in columns.items()})


PANEL = Case(
    name="panel",
    settings={
        "kind": "histogram",
        "schema": schema(PERIODS),
        "privacy": {"epsilon": 2, "delta": 1e-6},
        "histograms": [{"columns": ["month", "job"]}, {"columns": ["month", "sex", "job"]}],
        "unit": {"by": "person", "at_most": PERIODS},
        "panel": {"period": "month", "changes": 1},
    },
    table=workers,
    rows=ROWS,
    bad=None,
)

Records = Sequence[tuple[int, int, int]]  # person, month, job


def counted(records: Records, periods: int, changes: int) -> dict[int, np.ndarray]:
    """By person the counts by month and job of the records that are used."""
    who = {"name": "who", "kind": "integer", "bounds": [0, 999]}
    attributes = [*schema(periods)["attributes"][:2], who]
    person, month, job = np.array(records).T
    columns = {"month": month, "job": np.array(["no", "part", "full"])[job], "who": person, "person": person}
    own = Schema.model_validate({"attributes": attributes})
    table = TableInMemory(pa.table(columns), "table").open(own, partitions=2, beside="person")
    found = bounded(EXECUTOR, table, at_most=periods, key=KEY, following=Following(0, (1,), changes))
    codes, _ = run_pass(found, gather_operator())
    counts = np.zeros((1_000, periods, 3), np.int64)
    np.add.at(counts, (codes[2], codes[0], codes[1]), 1)
    return dict(enumerate(counts))


def followed(history: Sequence[tuple[int, ...]], changes: int) -> list[int]:
    """The cells that count of a history without two cells in a period, from its first to the first pause."""
    started = list(dropwhile(lambda own: not own, history))
    cells = [own[0] for own in takewhile(bool, started)]
    made = list(accumulate((a != b for a, b in pairwise(cells)), initial=0))
    return [cells[max(s for s in range(t + 1) if made[s] <= changes)] for t in range(len(cells))]


@pytest.mark.parametrize(("periods", "changes"), [(2, 0), (2, 1), (3, 0), (3, 1), (4, 2)])
def test_no_history_costs_more_than_is_charged_and_one_does(periods: int, changes: int) -> None:
    """Every history of three values, with pauses and with several records in a period; a person changes no other."""
    panel, most = Panel.of(periods, changes), 0
    cells: list[tuple[int, ...]] = [(), (0,), (1,), (2,), *([(0, 1)] if periods < 4 else [])]
    histories = list(product(cells, repeat=periods))
    records = [(k, t, cell) for k, history in enumerate(histories) for t, own in enumerate(history) for cell in own]
    found = counted(records, periods, changes)
    for k, history in enumerate(histories):
        assert found[k].sum(1).max() <= 1
        used = [int(row.argmax()) for row in found[k] if row.any()]
        assert sum(a != b for a, b in pairwise(used)) <= changes
        assert max(map(len, history)) > 1 or used == followed(history, changes)
        most = max(most, int((panel.measured(found[k]) ** 2).sum()))
    assert most == panel.squared
    fewer = counted([one for one in records[::-1] if one[0] % 3], periods, changes)
    assert all((fewer[k] == found[k]).all() for k in range(len(histories)) if k % 3)


@pytest.mark.parametrize(("periods", "changes"), [(3, 1), (12, 0), (12, 1), (12, 2)])
def test_the_noise_is_the_covariance_that_is_stated(periods: int, changes: int) -> None:
    panel, table = Panel.of(periods, changes), np.arange(2 * periods).reshape(periods, 2)
    np.testing.assert_allclose(panel.solved(panel.measured(table)), table, atol=1e-9)
    strategy = np.array(panel.strategy, float)
    np.testing.assert_allclose(panel.covariance, panel.squared * np.linalg.inv(strategy.T @ strategy), rtol=1e-9)
    if (periods, changes) == (12, 1):  # independent noise: 3.46 and 4.90
        assert panel.deviations[0] < 2.415
        assert panel.deviations[1] < 2.1


@pytest.mark.parametrize(
    ("kind", "cells", "nearer"),
    [
        ("none", 280, 0.5),
        ("small", 280, 0.6),
        ("large", 280, 1.0),
        ("far", 280, 0.7),
        ("all", 40, 1.0),
        ("none", 6, 0.8),
    ],
)
def test_shrunk_counts_are_nearer_whatever_changes(kind: str, cells: int, nearer: float) -> None:
    """In mean over keys, for levels and changes; intervals cover, and sums over all cells are what was measured."""
    rng, panel, deviation = np.random.default_rng(5), Panel.of(12, 1), 30.0
    levels, late = np.exp(rng.uniform(2, 9, cells)), np.arange(12)[:, None] >= 5
    steps = rng.normal(size=(12, cells)).cumsum(0)
    far, part = 900 * late * (np.arange(cells) % 29 == 3), -0.3 * levels * late * rng.random(cells)
    moved = {"none": 0 * steps, "small": 3 * steps, "large": 300 * steps, "far": far, "all": part}[kind]
    true = np.rint(levels + moved).astype(np.int64)
    errors, covered = [], []
    for _ in range(3_500 // (cells + 20)):
        noise = rng.normal(0, deviation * panel.norm / panel.deviations[0], true.shape)
        measured = panel.measured(true) + np.rint(noise).astype(np.int64)
        linear, (counts, parts) = panel.solved(measured), panel.shrunk(measured, deviation)
        np.testing.assert_allclose(counts.sum(1), linear.sum(1), atol=1e-6)
        covered.append(np.abs(counts - true) < 1.96 * deviation * parts)
        away = np.array([linear, counts]) - true
        errors.append([(of**2).mean((1, 2)) for of in (away, np.diff(away, axis=1))])
    level, changes = np.sqrt([after / before for before, after in np.mean(errors, 0)])
    assert level < (1 + nearer) / 2 + 0.005
    assert changes < nearer + 0.005
    assert 0.93 < np.mean(covered) < 0.98


def test_a_release(tmp_path: Path) -> None:
    """Verified, charged once, with the errors that it states; the custodian learns how many values are frozen."""
    spec = PANEL.project(tmp_path)
    plan = make_plan(spec)
    assert isinstance(plan, HistogramPlan)
    assert plan.panel is not None
    assert "with independent noise" in plan.explain()
    assert 1.98 < plan.epsilon <= 2
    assert run_release(spec, attempt="once") is not None
    stated = verify(spec.output.path)
    strategy: Any = read_manifest(spec.output.path).parameters["panel"]
    assert strategy["strategy"] == list(map(list, plan.panel.strategy))
    rows = pq.read_table(Path(spec.output.path) / "data").to_pylist()
    assert len(rows) == stated.cells == 54
    first = [row for row in rows if row["of"] == "month x job"]
    month, job, _, person = workers(ROWS).to_pydict().values()
    codes = [("no", "part", "full").index(name) for name in job]
    true = sum(counted(list(zip(person, month, codes, strict=True)), PERIODS, 1).values()).ravel()
    away = np.array([row["noisy"] for row in first]) - true
    errors = np.array([row["standard_error"] for row in first])
    assert 0.2 < np.sqrt(np.mean((away / errors) ** 2)) < 2.6  # of 18
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(plan.deviations[0], rel=1e-6)
    nearer = [row["standard_error"] for row in rows if row["of"] != "month x job"]
    assert np.sqrt(np.mean(np.square(nearer))) < plan.deviations[1]  # of six cells, which tell what they have in common
    (record,) = Path(spec.work).glob("*/run-record.json")
    assert json.loads(record.read_text())["table"]["rows_with_earlier_values"] > 50
    assert not any("earlier_values" in path.read_text() for path in Path(spec.output.path).glob("_*.[jm]*"))


def test_what_is_refused(tmp_path: Path) -> None:
    def planned(**changes: Any) -> HistogramPlan:
        made = make_plan(PANEL.spec(tmp_path, **changes))
        assert isinstance(made, HistogramPlan)
        return made

    with pytest.raises(SpecError, match="hardly less"):
        planned(schema=schema(2), unit={"by": "person", "at_most": 2})
    for changes, message in (
        ({"unit": {"by": "person", "at_most": PERIODS - 1}}, "at_most: 6"),
        ({"panel": {"period": "job", "changes": 1}}, "no column with an order"),
        ({"histograms": [{"columns": ["job", "month"]}]}, "the first column"),
        ({"privacy": {"epsilon": 1}}, "Gaussian"),
        ({"entropies": {}}, "entropies: a panel"),
    ):
        with pytest.raises((SpecError, ValidationError), match=message):
            planned(**changes)
    with pytest.raises(ContractBroken, match="no contract"):  # a record more changes what later ones count as
        kept_contract(None, PANEL.spec(tmp_path), name="people", event=None)


def test_the_claim_is_the_worst_history_and_an_audit_comes_near(tmp_path: Path) -> None:
    spec = PANEL.spec(tmp_path, privacy={"epsilon": 3, "delta": 0.01}, histograms=[{"columns": ["month", "job"]}])
    plan = make_plan(spec)
    assert isinstance(plan, HistogramPlan)
    assert plan.measurement is not None
    (claim,), (planned,), ((_, scale),) = family_of(spec).claims(plan), plan.measurement.scales, plan.noise
    moved = claim.present(Noise(bytes(32))) - claim.absent(Noise(bytes(32)))
    assert np.linalg.norm(moved) / scale == pytest.approx(1 / planned, rel=1e-6)
    sides = [lambda noise, side=side: side(noise) @ moved for side in (claim.absent, claim.present)]
    found = audit(replace(claim, absent=sides[0], present=sides[1]), runs=400, key=bytes(32))
    assert not found.rejected
    assert found.lower_bound > 0.2 * found.epsilon
    assert not family_of(spec).canaries(plan)
