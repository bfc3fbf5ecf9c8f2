"""A synthesis of clients' records, end to end: released as by one curator, and resumed as it began."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from federations import NAMES, released, states, summing_federation

from dpdist.cluster.worker_groups import Lost
from dpdist.errors import RoundFailed, SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.base.family import SolveRequest
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.accuracy import solve_clients
from dpdist.federated import rounds
from dpdist.privacy.noise import SAMPLER_DELTA
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import verify


def cut_short(monkeypatch: pytest.MonkeyPatch, number: int) -> list[tuple[str, str, bytes]]:
    """Lose west when it is called the `number`-th time for an answer; returns what all clients sent, in order."""
    sent: list[tuple[str, str, bytes]] = []
    plain, calls = rounds.OneProcess.call, []

    def call(self: Any, what: str, function: Any, arguments: Any) -> dict[str, Any]:
        answers = plain(self, what, function, arguments)
        if what == "client-answer":
            calls.append(what)
            sent.extend((name, a.value.round, a.value.steps.tobytes()) for name, a in answers.items())
            if len(calls) == number:
                answers["west"] = Lost("it has no worker any more")
        return answers

    monkeypatch.setattr(rounds.OneProcess, "call", call)
    return sent


def test_clients_release_what_a_curator_would(tmp_path: Path) -> None:
    spec = summing_federation(tmp_path)
    released(spec, key=None)
    assert states(spec) == {name: ["committed"] for name in ("", *NAMES)}
    manifest = Manifest.from_bytes((tmp_path / "release" / "_manifest.json").read_bytes())
    assert manifest.parameters["clients"] == 3
    assert manifest.parameters["federated"] == {"clients": 3, "trust": "correlated", "colluding": 0, "at_least": 3}
    assert [one["kind"] for one in manifest.guarantees] == ["differential-privacy", "federated-differential-privacy"]
    measured = manifest.parameters["accuracy"]
    assert [order["attributes"] for order in measured["orders"]] == [1, 2, 3]
    assert {len(order["deviation"]) for order in measured["orders"]} == {9}
    report = verify(spec.output.path)
    assert report.records == 2_000
    found = pq.read_table(sorted((tmp_path / "release").rglob("*.parquet")))
    own = [pq.read_table(tmp_path / name / "people.parquet") for name in NAMES]
    for name, value in (("class", "high"), ("sex", "F")):
        share = np.mean(np.concatenate([np.array(t[name].to_pylist()) == value for t in own]))
        assert abs(np.mean(np.array(found[name].to_pylist()) == value) - share) < 0.03
    account = dict(map(tuple, manifest.parameters["learned"]["account"]))
    assert account["all pairs"] > 0.5
    assert 0.8 < sum(account.values()) <= 1  # not all: no client draws less than its least noise
    work = next((tmp_path / "north" / "work").iterdir())
    assert len(list(work.glob("asked-*.json"))) == len(account) + 1  # and the accuracy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regressions": ["regression age on sex = 'F'"]}, "regressions: clients are asked"),
        ({"model__evidence": {"previous": ["releases/2026-01"]}}, "model.evidence: clients are asked"),
        ({"federated__unit_at": 2}, r"federated\.unit_at: it is about the records of a `unit`"),
    ],
)
def test_what_clients_are_not_asked_for_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        summing_federation(tmp_path, **changes)


def test_a_lost_client_fails_the_round_which_is_resumed_without_a_second_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = summing_federation(tmp_path, privacy__epsilon=0.5)  # pairs are picked by grids
    with monkeypatch.context() as patch:
        sent = cut_short(patch, 3)
        with pytest.raises(RoundFailed, match=r"'west' \(it has no worker any more\) dropped out"):
            released(spec)
        assert states(spec) == {name: ["drawing"] for name in ("", *NAMES)}
        assert not list((tmp_path / "release").rglob("*.parquet"))
        resumed = released(spec, attempt="resume")
    assert states(spec) == {name: ["committed"] for name in ("", *NAMES)}
    by_round: dict[tuple[str, str], set[bytes]] = {}
    for name, round, steps in sent:
        by_round.setdefault((name, round), set()).add(steps)
    assert {len(messages) for messages in by_round.values()} == {1}
    numbers = {round.split("/")[1] for _, round in by_round}
    assert len({round for _, round in by_round}) == len(numbers)  # each number was asked as one question
    rows = [pq.read_table(path) for path in sorted((tmp_path / "release").rglob("*.parquet"))]
    assert sum(len(part) for part in rows) == 2_000
    assert resumed


def test_the_noise_of_colluding_clients_is_not_counted(tmp_path: Path) -> None:
    names = tuple("abcdefgh")
    plans = {
        colluding: make_plan(summing_federation(tmp_path, names, federated__colluding=colluding))
        for colluding in (0, 2)
    }
    facts = {k: {f.title: f.numbers for f in plan.details()}["Noise of the sums"] for k, plan in plans.items()}
    assert facts[0]["times"] == 1
    assert facts[2]["times"] == pytest.approx((8 / 6) ** 0.5)
    for plan in plans.values():  # the same but for the draws, which are those of what each does
        noise, drawn = plan.event.events
        budget = plan.spec.privacy
        draws = round(drawn.delta / SAMPLER_DELTA)
        assert (
            plan.event
            == GaussianPlan.of(epsilon=budget.epsilon, delta=budget.delta, draws=draws, label=noise.label).event
        )
    local = make_plan(summing_federation(tmp_path, names, federated__trust="local"))
    assert {f.title: f.numbers for f in local.details()}["Noise of the sums"]["times"] == pytest.approx(8**0.5)
    chosen = {}
    for records in (8_000, 10_000_000):  # where all is sampling, nothing is gained by masks
        asked = summing_federation(tmp_path, names, data__minimum_records=records)
        request = SolveRequest(source=tmp_path / "spec.yaml", settings=[])
        chosen[records] = next(iter(solve_clients(asked, asked.federated, request).numbers["errors"]))  # type: ignore[arg-type]
    assert chosen == {8_000: "correlated, at least 7", 10_000_000: "local"}
    prior = {"path": "prior.parquet", "public": "a table that everybody has seen"}
    with pytest.raises(SpecError, match=r"model\.prior"):
        summing_federation(tmp_path, model__prior=prior)
