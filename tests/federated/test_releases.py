"""Two-stage releases and histograms of clients' records: each sum is asked for once, and released as by a curator."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from federations import NAMES, counting_federation, posted_federation, states
from federations import predicting_federation as federation

from dpdist.cluster.worker_groups import Lost
from dpdist.errors import RoundFailed, SpecError
from dpdist.families.base.registry import make_plan
from dpdist.families.histogram.plan import FederatedHistogramPlan
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.families.histogram.stages import HistogramSession, NoisyStatistics, sums_of
from dpdist.families.prediction.private.stages import PredictionSession, contribute
from dpdist.federated import mailbox, rounds
from dpdist.federated.client import ClientAnswer
from dpdist.federated.mailbox import MailboxClient
from dpdist.federated.messages import Masks
from dpdist.federated.sums import Question, SummedTables, added, part_of
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.lifecycle.run import Run
from dpdist.privacy.arrays import Counts
from dpdist.privacy.calibrate import ABOVE
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import verify


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Counts]]:
    """What each client sends, in order; west is lost at what stands under ``lost``."""
    found: dict[str, list[Counts]] = {name: [] for name in NAMES} | {"lost": []}
    plain = rounds.OneProcess.call

    def call(self: Any, what: str, function: Any, arguments: Any) -> dict[str, Any]:
        answers = plain(self, what, function, arguments)
        if what == "client-contribute":
            for name, answer in answers.items():
                found[name].append(answer.value.steps)
            if len(found["west"]) in found["lost"]:
                answers["west"] = Lost("it has no worker any more")
        return answers

    monkeypatch.setattr(rounds.OneProcess, "call", call)
    return found


def test_clients_release_what_a_curator_would(tmp_path: Path, sent: dict[str, list[Counts]]) -> None:
    spec = federation(tmp_path)
    with Run(spec) as run:
        run.finish()
    assert states(spec) == {name: ["committed"] for name in ("", *NAMES)}
    assert verify(spec.output.path).records == 2_000
    manifest = Manifest.from_bytes((tmp_path / "release" / "_manifest.json").read_bytes())
    assert manifest.parameters["clients"] == 3
    assert [one["kind"] for one in manifest.guarantees] == ["differential-privacy", "federated-differential-privacy"]
    tables = [pq.read_table(tmp_path / name / "people.parquet") for name in NAMES]
    made = pq.read_table(sorted((tmp_path / "release").rglob("*.parquet")))
    for label in ("high", "low"):
        ages = np.concatenate([t["age"].to_numpy()[np.array(t["class"].to_pylist()) == label] for t in tables])
        found = made["age"].to_numpy()[np.array(made["class"].to_pylist()) == label]
        assert abs(found.mean() - ages.mean()) < 2.5
    assert [len(sent[name]) for name in NAMES] == [3, 3, 3]
    # the sum of the masked marginals is that of the exact ones and noise of the plan's size; no message alone is
    plan = make_plan(spec)
    cells = added([sent[name][0] for name in NAMES])
    assert cells.size == sum(column.cells for column in plan.columns)
    assert abs(float(cells.sum()) - 3 * 9_000) < 6 * plan.noise.marginal * np.sqrt(cells.size)
    for name in NAMES:
        assert np.abs(sent[name][0].astype(float)).min() > 1e9


def test_a_lost_client_is_waited_for_and_sends_the_same(tmp_path: Path, sent: dict[str, list[Counts]]) -> None:
    spec = federation(tmp_path)
    sent["lost"] = [2]  # type: ignore[list-item]
    with pytest.raises(RoundFailed, match=r"'west' \(it has no worker any more\) dropped out"), Run(spec) as run:
        run.finish()
    assert states(spec) == {name: ["drawing"] for name in ("", *NAMES)}
    with Run(spec, attempt="resume") as run:
        run.finish()
    assert states(spec) == {name: ["committed"] for name in ("", *NAMES)}
    for name in NAMES:
        _, second, again, _ = sent[name]
        assert np.array_equal(second, again)


def test_a_client_answers_each_statistic_of_its_plan_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, told = federation(tmp_path), []
    plain = rounds.ClientCalls.each

    def each(self: Any, stage: str, task: Any, names: Any, *args: Any, fault: str) -> dict[str, Any]:
        if task is contribute:
            told.append((self.told("north"), *args))
        return plain(self, stage, task, names, *args, fault=fault)

    monkeypatch.setattr(rounds.ClientCalls, "each", each)
    monkeypatch.setattr(
        "dpdist.federated.together.agree", lambda *_, **__: (_ for _ in ()).throw(RoundFailed("stopped"))
    )
    with pytest.raises(RoundFailed, match="stopped"), Run(spec) as run:
        run.finish()
    session, known, members = told[-1]
    assert isinstance(session, PredictionSession)
    right: ClientAnswer = contribute(session, known, members)
    assert not right.error
    assert np.array_equal(contribute(session, known, members).value.steps, right.value.steps)
    other = (known[0] + 1, *known[1:])
    too_many = (*known, right.value.steps)
    same_bytes = (
        (known[0].view(np.float64), *known[1:]),
        (known[0].astype(">i8").view(np.int64).view(">i8"), *known[1:]),
    )
    huge = (np.full_like(known[0], 1 << 60), *known[1:])
    for asked in (other, too_many, (known[0][1:], *known[1:]), *same_bytes, huge):
        answer = contribute(session, asked, members)
        assert answer.error.startswith("RoundFailed")
        assert answer.value is None
    assert contribute(session, known, {"north": members["north"]}).error.startswith("RoundFailed")


def test_by_mailbox_as_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "_POLL", 0.01)
    spec = posted_federation(tmp_path, make=federation)
    clients = [MailboxClient(spec, name, PredictionSession) for name in NAMES]
    with ThreadPoolExecutor(len(NAMES)) as threads:
        attended = [threads.submit(one.attend, patience=20) for one in clients]
        with Run(spec) as run:
            run.finish()
        assert all(one.result() for one in attended)
    assert states(spec) == {name: ["committed"] for name in ("", *NAMES)}
    assert verify(spec.output.path).records == 2_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"guarantee": "lid", "disclosure": {"lid": 0.1}}}, "federated: clients send noisy sums"),
        ({"unit": {"by": "patient", "at_most": 2}}, "unit: a federated release protects single records only"),
    ],
)
def test_what_clients_cannot_do_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        federation(tmp_path, **changes)


def test_the_noise_of_the_honest_clients_is_what_is_charged(tmp_path: Path) -> None:
    small = {"privacy__epsilon": 0.5}  # no client draws its least noise
    central = make_plan(federation(tmp_path, federated=None, data__path=str(tmp_path / "north"), **small))
    for colluding, honest in ((0, 3), (1, 2)):
        plan = make_plan(federation(tmp_path, federated__colluding=colluding, **small))
        own, noise = plan.own_charge, plan.noise
        for name in ("marginal", "correlation", "product", "cross"):
            charged = getattr(plan.charge, name)
            assert charged <= getattr(own, name) * honest**0.5 <= charged * (1 + 1e-9)
            assert getattr(noise, name) == pytest.approx(getattr(own, name) * 3**0.5)
            assert charged == pytest.approx(getattr(central.charge, name), rel=1e-3)


# --- Histograms and entropies of clients' records: one curator's noise, and bit for bit the sum of what clients draw


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
