"""A release and the audit of it run the same stages: a line that changes in one of them changes both."""

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.deniability_claims import release_claim
from releases import KEY, project

from dpdist.errors import CheckFailed
from dpdist.families.base.attempt import ReleasedRecords
from dpdist.families.base.network import Network
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.deniability import estimation, stages
from dpdist.families.deniability.claims import alike
from dpdist.families.deniability.deniability import PrivacyTest
from dpdist.families.deniability.parameters import NoisyTables, measure_tables, split_tables
from dpdist.families.deniability.plan import plan
from dpdist.families.deniability.solve import solve_plan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.splits import combined
from dpdist.families.deniability.structure import Structure, StructureStatistics
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.deniability import SeedRecords, pass_probability
from dpdist.privacy.event import from_json
from dpdist.privacy.events import Composed, DiscreteLaplace
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import audit
from dpdist.publish.verify import read_manifest, read_release, verify
from dpdist.spec.validation import change

SIZES = (2, 3, 3)
NOISE = Noise(bytes(range(32)))


def table() -> Codes:
    """4,150 records, 150 of which share the first attribute of the canary (1, 1, 1): about k of the seeds."""
    rng = np.random.default_rng(0)
    first = np.repeat(np.array([0, 1], np.uint8), (4000, 150))
    return [first, *(rng.integers(0, size, len(first)).astype(np.uint8) for size in SIZES[1:])]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlausibleDeniabilitySpec:
    """A whole-release guarantee for this small table."""
    monkeypatch.setattr(estimation, "SIMULATED", 1 << 8)
    names = [f"a{i}" for i in range(len(SIZES))]
    pq.write_table(pa.table(dict(zip(names, table(), strict=True))), tmp_path / "table.parquet")
    return project(
        tmp_path,
        epsilon="1000",
        schema={
            "attributes": [
                {"name": name, "kind": "categorical", "values": list(range(size))}
                for name, size in zip(names, SIZES, strict=True)
            ]
        },
        data__minimum_records=4000,
        privacy={
            "model": {"epsilon": 1, "delta": 1e-6},
            "seed_check_epsilon": 1,
            "checked_candidates": 4096,
            "deniability": {"k": 60, "gamma": 2, "epsilon0": 0.25},
        },
        split={"structure": 0.2, "parameters": 0.4, "seeds": 0.4},
        model__order=names,
        synthesis={"records": 200, "omega": 2, "minimum_pass_rate": 0.15},
    )


def released(spec: PlausibleDeniabilitySpec, name: str) -> list[Any]:
    """What a release publishes."""
    path = f"{spec.output.path}-{name}"
    run_release(change(spec, {"name": name, "output.path": path}), fixed_key=KEY)
    columns: list[Any] = read_release(path).to_pydict().values()
    return [list(column) for column in columns]


def audited(spec: PlausibleDeniabilitySpec) -> Floats:
    """What an audit of the release sees of the table with the canary."""
    claim = release_claim(plan(spec), table(), alike(SIZES, 1, code=1))
    return np.asarray(claim.present(NOISE))


def without_noise(counts: Any, structure: Structure, **settings: Any) -> NoisyTables:
    return replace(measure_tables(counts, structure, **settings), tables=split_tables(counts, structure))


def shifted(self: PrivacyTest, noise: Noise, start: int, stop: int) -> Any:
    return THRESHOLDS(self, noise, start, stop) + 6


THRESHOLDS = PrivacyTest.thresholds


@pytest.mark.parametrize(
    ("owner", "name", "changed"), [(stages, "measure_tables", without_noise), (PrivacyTest, "thresholds", shifted)]
)
def test_a_change_inside_a_stage_changes_the_release_and_its_audit(
    spec: PlausibleDeniabilitySpec, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, changed: Any
) -> None:
    published, seen = released(spec, "before"), audited(spec)
    assert seen[0] == 1.0  # there is a release
    assert released(spec, "again") == published
    assert np.array_equal(audited(spec), seen)
    monkeypatch.setattr(owner, name, changed)
    assert released(spec, "after") != published
    assert not np.array_equal(audited(spec), seen)


def test_an_audit_of_the_stages_rejects_tables_without_noise(
    spec: PlausibleDeniabilitySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = change(
        spec,
        {
            "privacy.model.epsilon": 0.5,
            "model.structure": "independent",
            "split": {"structure": 0, "parameters": 1, "seeds": 0},
            "synthesis.omega": "all",
            "synthesis.records": 1,
        },
    )
    claim = release_claim(plan(small), alike(SIZES, 20), alike(SIZES, 1, code=1))
    assert not audit(claim, runs=60, key=bytes(range(32))).rejected
    monkeypatch.setattr(stages, "measure_tables", without_noise)
    assert audit(claim, runs=60, key=bytes(range(32))).rejected


def test_a_rehearsal_leaves_the_results_of_its_stages(spec: PlausibleDeniabilitySpec) -> None:
    made = rehearse(plan(spec), stages.stages(plan(spec)), table(), key=KeyRef.fixed(KEY), partitions=3)
    for kind in (StructureStatistics, Structure, NoisyTables, Network, stages.IndexedSeeds, ReleasedRecords):
        assert isinstance(made.result(kind), kind)
    assert not made.parts
    assert not made.work.names()
    one = rehearse(plan(spec), stages.stages(plan(spec)), table(), key=KeyRef.fixed(KEY), until=Network)
    assert made.result(Network).to_bytes() == one.result(Network).to_bytes()
    with pytest.raises(LookupError, match="ReleasedRecords"):
        released_codes(one)
    written = rehearse(plan(spec), stages.stages(plan(spec)), table(), key=KeyRef.fixed(KEY), until=None)
    assert sum(part.rows for part in written.parts) == 200
    assert list(written.output.names()) == [part.name for part in written.parts]


def test_a_rehearsal_refuses_what_a_release_refuses(spec: PlausibleDeniabilitySpec) -> None:
    with pytest.raises(CheckFailed, match=r"data\.minimum_records"):
        rehearse(plan(spec), stages.stages(plan(spec)), alike(SIZES, 500), key=key_from(NOISE))


# --- Stages that all use all records: their costs compose, by enumeration, and each stage sees every record


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
