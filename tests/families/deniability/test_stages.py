"""A release and the audit of it run the same stages: a line that changes in one of them changes both."""

from __future__ import annotations

from dataclasses import replace
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
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import Structure, StructureStatistics
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.run import run_release
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import audit
from dpdist.publish.verify import read_release
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
