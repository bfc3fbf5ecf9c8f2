"""Stages that all use all records: their costs compose, by enumeration, and each stage sees every record."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from releases import KEY, project

from dpdist.families.deniability.plan import plan
from dpdist.families.deniability.solve import solve_plan
from dpdist.families.deniability.splits import combined
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Floats
from dpdist.privacy.deniability import SeedRecords, pass_probability
from dpdist.privacy.event import from_json
from dpdist.privacy.events import Composed, DiscreteLaplace
from dpdist.publish.verify import read_manifest, verify

EPSILONS = np.linspace(0, 2.5, 11)
SCALE, REACH = 1.5, 60  # of the noise on the count of a parameter
K, EPSILON0 = 3, 0.7


def law(table: tuple[int, ...]) -> tuple[Floats, float]:
    """Exact law of (noisy count, released record), and Z, of a table as counts of (0, 0), (0, 1), (1, 0), (1, 1).

    The released record keeps the first value of its seed; the second is drawn by the noisy count of the *same* records.
    """
    noise = np.exp(-np.abs(np.arange(-REACH, REACH + 1)) / SCALE)
    learned = np.zeros(2 * REACH + 12)
    learned[table[1] + table[3] :][: noise.size] = noise / noise.sum()
    one = np.clip((np.arange(learned.size) - REACH + 0.5) / 4, 0.05, 0.95)  # a model of the noisy count
    kept = np.array([table[0] + table[1], table[2] + table[3]])
    passing = kept * np.array([pass_probability(int(c), k=K, epsilon0=EPSILON0) for c in kept])
    mass = float(passing.sum())
    drawn = passing[:, None, None] / mass * np.stack([1 - one, one])
    return learned * drawn, mass


def hockey_sticks(p: Floats, q: Floats) -> Floats:
    grown: Floats = np.maximum(p.ravel()[:, None] - np.exp(EPSILONS) * q.ravel()[:, None], 0).sum(axis=0)
    return grown


def test_learning_and_seeds_from_the_same_records_never_exceed_the_charge(tmp_path: Path) -> None:
    """All tables of one to seven records of a universe of four, with each that has one record more."""
    spec = project(tmp_path, split={"records": "all"})
    parameters = DiscreteLaplace(SCALE)

    @cache
    def bounds(mass: float) -> tuple[Floats, Floats]:
        seeds = SeedRecords(k=K, gamma=1.0, epsilon0=EPSILON0, passing_mass=mass, records=1)
        event = combined(spec, None, parameters, seeds)
        assert event == Composed((parameters, seeds))
        whole, alone = ([accountant.delta(one, epsilon=e) for e in EPSILONS] for one in (event, seeds))
        return np.array(whole), np.array(alone)

    closest, beyond, pairs = 0.0, 0, 0
    for table in product(range(5), repeat=4):
        if not 1 <= sum(table) <= 7:
            continue
        before, mass = law(table)
        bound, alone = bounds(mass)
        for place in range(4):
            after, _ = law(tuple(count + (i == place) for i, count in enumerate(table)))
            pairs += 1
            for p, q in ((after, before), (before, after)):
                exact = hockey_sticks(p, q)
                assert (exact <= bound * (1 + 1e-6) + 1e-12).all(), (table, place)
                visible = bound > 1e-3
                closest = max(closest, float((exact[visible] / bound[visible]).max()))
                beyond += bool((exact > alone * 1.01 + 1e-6).any())
    assert pairs > 1_000
    assert closest > 0.9
    assert beyond > 100  # the seeds alone would be too little: the test has power


def test_every_stage_sees_every_record(tmp_path: Path) -> None:
    spec = project(
        tmp_path,
        split={"records": "all"},
        data__minimum_records=25_000,
        privacy={
            "model": {"epsilon": 2, "delta": 1e-6},
            "seed_check_epsilon": 0.2,
            "checked_candidates": 4096,
            "deniability": {"k": 40, "gamma": 1.01, "epsilon0": 0.4},
        },
        synthesis={"records": 200, "omega": 3, "minimum_pass_rate": 0.1},
    )
    made = plan(spec)
    assert made.kind == "dp"
    assert isinstance(made.event, Composed)
    assert "Records     all of them in every stage" in made.explain()
    alone = [accountant.epsilon(event, delta=made.delta) for event in made.event.events]
    assert max(alone) < made.epsilon < sum(alone)
    outcome = run_release(spec, fixed_key=KEY)
    assert verify(outcome.uri).records == 200
    stated = read_manifest(outcome.uri).parameters
    assert stated["shares"] == {"structure": "1", "parameters": "1", "seeds": "1"}
    assert from_json(stated["event"]) == made.event  # type: ignore[arg-type]
    (record,) = Path(spec.work).glob("*/run-record.json")
    found = json.loads(record.read_text())
    assert found["seeds"] == found["table"]["rows_kept"]


@pytest.mark.parametrize("epsilon", [4])
def test_the_solver_spends_the_budget_on_all_records(tmp_path: Path, epsilon: float) -> None:
    spec = project(
        tmp_path, synthesis={"records": 300}, privacy={"model": {"epsilon": 1, "delta": 1e-7}}, split={"records": "all"}
    )
    found = solve_plan(spec, epsilon=epsilon)
    assert found.spec.split.records == "all"
    assert 0.98 * epsilon < found.plan.epsilon <= epsilon
    assert {one.settings["split"]["records"] for one in found.alternatives if one.settings} == {"all"}
