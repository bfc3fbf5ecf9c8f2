"""Histograms and entropies of clients' records: one curator's noise, and bit for bit the sum of what clients draw."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from federations import NAMES, counting_federation, states

from dpdist.errors import SpecError
from dpdist.families.base.registry import make_plan
from dpdist.families.histogram.plan import FederatedHistogramPlan
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.families.histogram.stages import HistogramSession, NoisyStatistics, sums_of
from dpdist.federated.messages import Masks
from dpdist.federated.sums import Question, SummedTables, part_of
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.lifecycle.run import Run
from dpdist.privacy.calibrate import ABOVE
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import verify

KEY = "5a" * 32


def exact(folder: Path) -> list[np.ndarray]:
    """The tables of a client, from its file."""
    table = pq.read_table(folder / "people.parquet")
    age = np.bincount(table["age"].to_numpy(), minlength=60)
    label, sex = (np.array(table[name].to_pylist()) for name in ("class", "sex"))
    pair = [[((label == a) & (sex == b)).sum() for b in ("F", "M")] for a in ("low", "high")]
    return [age, np.array(pair)]


@pytest.fixture
def spec(tmp_path: Path) -> HistogramSpec:
    return counting_federation(tmp_path)


def test_tables_are_the_sum_of_what_clients_draw(spec: HistogramSpec, tmp_path: Path) -> None:
    plan = make_plan(spec)
    assert isinstance(plan, FederatedHistogramPlan)
    with Run(spec, attempt="new", fixed_key=KEY) as run:
        run.finish()
    (work,), uri = (tmp_path / "work").iterdir(), KeyRef.fixed(KEY).uri
    found = SummedTables.from_bytes((work / "sums-000.npz").read_bytes())
    noisy = NoisyStatistics.from_bytes((work / NoisyStatistics.FILE).read_bytes()).arrays
    assert states(spec) == {name: ["committed"] for name in ("", *NAMES)}
    sigmas = tuple(scale * ABOVE for _, scale in plan.noise if scale is not None)
    question = Question(0, "histograms", tuple(sums_of(plan)), sigmas)
    assert found.digest == question.digest
    total = np.zeros(64, np.int64)
    for name in NAMES:
        own = KeyRef.fixed(hashlib.sha256(f"{uri} {name}".encode()).hexdigest())
        total += part_of(exact(tmp_path / name), question, load_noise(own), Masks(), honest=3)
    assert np.array_equal(found.cells, total)
    assert np.array_equal(np.concatenate([noisy["table_0"], noisy["table_1"].ravel()]), total)
    true = np.concatenate([np.sum(t, 0).ravel() for t in zip(*(exact(tmp_path / n) for n in NAMES), strict=True)])
    assert np.abs(total - true).max() < 8 * max(plan.deviations)
    manifest = Manifest.from_bytes((tmp_path / "release" / "_manifest.json").read_bytes())
    assert manifest.parameters["clients"] == 3
    assert [one["kind"] for one in manifest.guarantees] == ["differential-privacy", "federated-differential-privacy"]
    verify(spec.output.path)
    rows = pq.read_table(sorted((tmp_path / "release").rglob("*.parquet"))).to_pylist()
    assert sum("entropy" in str(row["statistic"]) for row in rows) == 2, {row["statistic"] for row in rows}


def test_noise_is_that_of_one_curator(tmp_path: Path) -> None:
    spec = counting_federation(tmp_path, privacy__epsilon=0.5)
    tree = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    tree["privacy"]["mechanism"] = "gaussian"
    tree["data"] |= {"path": "people.parquet"}
    del tree["federated"]
    central = make_plan(type(spec).model_validate(tree))
    federated = make_plan(spec)
    assert np.allclose(federated.deviations, central.deviations, rtol=1e-4)  # type: ignore[attr-defined]
    assert federated.epsilon <= 0.5
    colluding = make_plan(counting_federation(tmp_path, federated__colluding=1, privacy__epsilon=0.5))
    assert colluding.deviations[0] == pytest.approx(federated.deviations[0] * 1.5**0.5)  # type: ignore[attr-defined]
    strong = make_plan(counting_federation(tmp_path, privacy__epsilon=1_000.0))
    assert min(scale for _, scale in strong.noise) >= 5 * 3**0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy__adjacency": "replacement"}, r"privacy\.adjacency: clients are asked"),
        ({"privacy__mechanism": "laplace"}, "clients draw Gaussian noise"),
        ({"entropies": {}}, r"entropies: clients are asked .* counts\.entropies are those"),
        ({"histograms": [{"columns": ["age"], "adaptive": {"age": 5}}]}, "adaptive: clients are asked"),
    ],
)
def test_what_is_no_sum_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        counting_federation(tmp_path, **changes)


def test_a_client_answers_for_histograms_of_the_plan_alone(spec: HistogramSpec) -> None:
    session = HistogramSession(spec=spec, name="north", attempt="a")
    first, second = sums_of(session.plan)
    session.require(second)
    with pytest.raises(ValueError, match="no histogram"):
        session.require(type(first)((0, 2), (*first.maps, second.maps[1])))
    with pytest.raises(ValueError, match="no histogram"):
        session.require(type(first)(first.attributes, first.maps, np.ones(60, np.int64)))
