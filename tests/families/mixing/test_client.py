"""What a client does for itself: it sends what it was charged for, once, with whom it knows, and says little else."""

import json
import os
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow.parquet as pq
import pytest
from federations import NAMES, contract_of_client, federation, states, table

from dpdist.errors import ColumnMismatch
from dpdist.families.base.registry import make_plan
from dpdist.families.mixing import classes
from dpdist.families.mixing.federated import stages as mixing
from dpdist.families.mixing.federated.messages import average
from dpdist.families.mixing.federated.stages import MixingSession
from dpdist.families.mixing.mixture import clip_rows
from dpdist.families.mixing.plan import planned
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated import client
from dpdist.federated import session as client_session
from dpdist.federated.client import Joined
from dpdist.federated.messages import Masks, Message, check_message
from dpdist.federated.rounds import ClientCalls
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load

ORDER, SIGMA = 8, 0.3


@pytest.fixture
def spec(tmp_path: Path) -> MixingSpec:
    return federation(tmp_path)


@pytest.fixture
def sessions(spec: MixingSpec) -> dict[str, MixingSession]:
    """Sessions of all clients in one round, in this process."""
    attempt = str(uuid4())
    return {
        name: MixingSession(spec=spec, name=name, order=ORDER, sigma_over_clip=SIGMA, attempt=attempt) for name in NAMES
    }


def well(answer: client.ClientAnswer) -> Any:
    assert answer.error == ""
    return answer.value


def joined(sessions: dict[str, MixingSession]) -> dict[str, Joined]:
    """Go on to where messages are asked for."""
    members = {name: well(client.join(session)) for name, session in sessions.items()}
    for one in sessions.values():
        well(client.read(one))
        assert well(mixing.confirm(one)) == (True, True)
    return members


def steps(answer: client.ClientAnswer) -> np.ndarray:
    message = well(answer)
    assert isinstance(message, Message)
    return message.steps


def test_a_round_averages_the_mixtures_of_all(spec: MixingSpec, sessions: dict[str, MixingSession]) -> None:
    for one in sessions.values():
        well(client.hello(one))
    members = joined(sessions)
    messages = [well(mixing.send(one, 1, 0, members)) for one in sessions.values()]  # low comes after high
    plan = sessions["north"].plan
    mixer, round = plan.mixer(0), mixing.round_id(sessions["north"].attempt, 0, 0)
    pinned = {c.name: c.public_key or "" for c in spec.federated.clients}  # type: ignore[union-attr]
    for message in messages:
        key = pinned[message.client]
        check_message(message, client=message.client, public_key=key, round=round, shape=(1_200, 3))
    mixed = average(messages, mixer)
    # What each would have sent without masks, by its own key: the masks cancel.
    shared, alone = plan.shared(3), []
    for number, one in enumerate(sessions.values()):
        people = table(3_000, seed=number)
        low = np.array(people["class"].to_pylist()) == "low"
        sex = (np.array(people["sex"].to_pylist()) == "M").astype(np.uint8)
        codes = [np.array(people["age"])[low].astype(np.uint8), sex[low]]
        rows = clip_rows(plan.encoding.encode(codes), clip=mixer.clip)
        own = replace(mixer, sigma=shared.sigma)
        alone.append(own.mixtures(client_session.noise_of(one), rows, 0, 1_200).astype(np.float64))
    assert mixed == pytest.approx(np.mean(alone, axis=0), abs=1e-5)
    assert states(spec) == {"": [], **{name: ["drawing"] for name in NAMES}}
    digest = "0" * 64
    for task in (client.ready, client.commit, client.ready):
        for one in sessions.values():
            well(task(one, digest))
    assert states(spec) == {"": [], **{name: ["committed"] for name in NAMES}}
    assert mixing.send(sessions["west"], 1, 0, members).error.startswith("ReleaseConflict")


@pytest.mark.parametrize("names", ["age,class,sex", "years,class,sex"])
def test_a_line_that_the_coordinator_chooses_is_looked_at_under_a_charge(tmp_path: Path, names: str) -> None:
    spec = federation(tmp_path, data__csv__skip_rows=1)
    assert spec.federated is not None
    north = spec.federated.clients[0]
    people = Path(north.path).with_suffix(".csv")
    people.write_text(f"a record\n{names}\n" + "20,low,F\n" * 3_000)
    clients = (north.model_copy(update={"path": str(people)}), *spec.federated.clients[1:])
    spec = spec.model_copy(update={"federated": spec.federated.model_copy(update={"clients": clients})})
    one = MixingSession(spec=spec, name="north", order=ORDER, sigma_over_clip=SIGMA, attempt=str(uuid4()))
    well(client.hello(one))  # says the same of both tables
    well(client.join(one))
    assert client.read(one).error.startswith("DataError") == (names != "age,class,sex")
    client.void(one)
    assert states(spec)["north"] == ["drawing"]


def test_shards_do_not_change_a_message(sessions: dict[str, MixingSession], monkeypatch: pytest.MonkeyPatch) -> None:
    members = joined(sessions)
    whole = steps(mixing.send(sessions["south"], 0, 0, members))
    monkeypatch.setattr(classes, "SHARD_BYTES", 4 * 3 * 500)
    assert np.array_equal(steps(mixing.send(sessions["south"], 0, 0, members)), whole)
    client_session.forget(sessions["south"])  # as in another worker of the client
    assert np.array_equal(steps(mixing.send(sessions["south"], 0, 0, members)), whole)


def test_less_noise_than_was_charged_is_refused(sessions: dict[str, MixingSession]) -> None:
    members = joined(sessions)
    for change in ({"sigma_over_clip": SIGMA / 2}, {"order": 16}):
        asked = replace(sessions["north"], **change)  # type: ignore[arg-type]
        for answer in (mixing.send(asked, 0, 0, members), mixing.confirm(asked), client.read(asked)):
            assert answer.error.startswith("ReleaseConflict")


def test_a_class_is_mixed_with_the_same_clients_only(sessions: dict[str, MixingSession], spec: MixingSpec) -> None:
    members = joined(sessions)
    first = steps(mixing.send(sessions["north"], 0, 0, members))
    fewer = {name: members[name] for name in ("north", "south")}
    assert mixing.send(sessions["north"], 0, 0, fewer).error.startswith("RoundFailed")
    assert np.array_equal(steps(mixing.send(sessions["north"], 0, 0, members)), first)
    for strangers in ({**members, "east": members["west"]}, {"north": members["north"], "west": members["west"]}):
        assert mixing.send(sessions["south"], 0, 0, strangers).error.startswith("RoundFailed")
    assert mixing.send(sessions["north"], 0, 7, members).error.startswith("RoundFailed")  # no such block


def test_a_round_stays_in_the_folder_in_which_it_began(sessions: dict[str, MixingSession]) -> None:
    members = joined(sessions)
    north = sessions["north"]
    steps(mixing.send(north, 0, 0, members))
    federated = north.spec.federated
    assert federated is not None
    elsewhere = tuple(one.model_copy(update={"work": f"{one.work}-2"}) for one in federated.clients)
    moved = replace(
        north, spec=north.spec.model_copy(update={"federated": federated.model_copy(update={"clients": elsewhere})})
    )
    assert moved.spec.fingerprint == north.spec.fingerprint
    for ask in (client.join, client.read, mixing.confirm):
        assert ask(moved).error.startswith("ReleaseConflict")
    assert mixing.send(moved, 0, 0, {"north": members["north"]}).error.startswith("ReleaseConflict")


def test_a_key_that_its_client_did_not_sign_is_refused(sessions: dict[str, MixingSession]) -> None:
    members = joined(sessions)
    swapped = members | {"west": Joined(members["south"].public, members["west"].signature)}
    assert mixing.send(sessions["north"], 0, 0, swapped).error.startswith("RoundFailed")
    other_round = replace(sessions["west"], attempt=str(uuid4()))
    stale = well(client.join(other_round))
    assert mixing.send(sessions["south"], 0, 0, members | {"west": stale}).error.startswith("RoundFailed")


def test_clients_are_not_told_the_ledger_of_the_coordinator(spec: MixingSpec) -> None:
    """Its URL may hold a password, and what a client is told passes the scheduler."""
    spec = spec.model_copy(update={"ledger": "postgresql://me:sesame@host/ledger"})
    context = SimpleNamespace(spec=spec, plan=make_plan(spec), key=KeyRef("a", "key.json"), id="1", contract=None)
    told = ClientCalls(context, None, partial(MixingSession, order=ORDER, sigma_over_clip=SIGMA)).told("north")  # type: ignore[arg-type]
    assert b"sesame" not in pickle.dumps(told)
    assert told.spec.fingerprint == spec.fingerprint


def test_other_members_have_other_masks(sessions: dict[str, MixingSession]) -> None:
    members = {name: well(client.join(one)) for name, one in sessions.items()}

    def mask(names: tuple[str, ...]) -> Masks:
        return client.masks_of(sessions["north"], 0, {name: members[name] for name in names})

    two, three = mask(("north", "south")), mask(NAMES)
    assert not set(two.noises[0].words("x", 8)) & set(three.noises[0].words("x", 8))


def test_a_class_that_was_not_confirmed_is_not_mixed(tmp_path: Path) -> None:
    spec = federation(tmp_path, mixing__classes__high={"minimum": 2_000, "records": 10})
    attempt = str(uuid4())
    sessions = {n: MixingSession(spec=spec, name=n, order=ORDER, sigma_over_clip=SIGMA, attempt=attempt) for n in NAMES}
    members = {name: well(client.join(one)) for name, one in sessions.items()}
    assert mixing.send(sessions["north"], 0, 0, members).error.startswith("ReleaseConflict")  # nothing confirmed yet
    assert well(mixing.confirm(sessions["north"])) == (False, True)
    assert steps(mixing.send(sessions["north"], 1, 0, members)).shape == (1_200, 3)
    assert mixing.send(sessions["north"], 0, 0, members).error.startswith("RoundFailed")


def test_files_that_change_are_noticed(sessions: dict[str, MixingSession], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    one = sessions["north"]
    well(client.join(one))
    pq.write_table(table(3_001, seed=9), tmp_path / "north" / "people.parquet")
    assert client.read(one).error.startswith("ReleaseConflict")
    assert client.join(one).error.startswith("ReleaseConflict")


def test_troubles_are_told_by_kind_alone(sessions: dict[str, MixingSession], spec: MixingSpec, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bad = pa.table({"age": [4711], "class": ["low"], "sex": ["F"]})
    pq.write_table(bad, tmp_path / "west" / "people.parquet")
    well(client.join(sessions["west"]))
    answer = client.read(sessions["west"])
    assert answer.error == "DataError: The table cannot be used"
    assert "'age'" in next((tmp_path / "west" / "work").glob("*/error.txt")).read_text()
    well(client.void(sessions["west"]))
    assert states(spec)["west"] == ["drawing"]  # what a table is refused for is an answer
    assert client.read(sessions["west"]).error.startswith("DataError")
    (tmp_path / "south" / "people.parquet").unlink()
    assert client.hello(sessions["south"]).error == "DataError: The table cannot be used"
    (tmp_path / "north" / "identity.pem").chmod(0o644)
    assert client.hello(sessions["north"]).error.startswith("SpecError")


def test_the_folder_of_a_client_is_its_own_even_if_its_first_answer_is_a_trouble(
    sessions: dict[str, MixingSession], tmp_path: Path
) -> None:
    ledger = tmp_path / "north" / "ledger.db"
    ledger.rename(ledger.with_suffix(".away"))
    assert client.hello(sessions["north"]).error.startswith("LedgerError")
    work = tmp_path / "north" / "work"
    folders = [work, *work.iterdir()]
    assert [(folder.stat().st_mode & 0o777) for folder in folders] == [0o700, 0o700]
    assert (folders[1] / "error.txt").read_text()


def test_an_unforeseen_error_is_told_without_its_text(
    sessions: dict[str, MixingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("the value planted-4711")

    monkeypatch.setattr(client_session, "table_of", fail)
    assert client.hello(sessions["north"]).error == "an unforeseen ValueError"


def test_another_identity_than_the_pinned_one_is_refused(sessions: dict[str, MixingSession], tmp_path: Path) -> None:
    (tmp_path / "south" / "identity.pem").rename(tmp_path / "north" / "identity.pem")
    assert client.hello(sessions["north"]).error.startswith("SpecError")
    assert client.join(sessions["north"]).error.startswith("SpecError")


def test_two_clients_of_one_data_set_are_refused(tmp_path: Path) -> None:
    shared = federation(tmp_path)
    tree = shared.model_dump(mode="json", by_alias=True)
    tree["federated"]["clients"][1] |= {key: tree["federated"]["clients"][0][key] for key in ("ledger", "dataset")}
    spec, attempt = MixingSpec.model_validate(tree), str(uuid4())
    sessions = {n: MixingSession(spec=spec, name=n, order=ORDER, sigma_over_clip=SIGMA, attempt=attempt) for n in NAMES}
    well(client.join(sessions["north"]))
    assert client.join(sessions["south"]).error.startswith("SpecError")
    assert states(shared)["north"] == ["reserved"]


def test_a_fixed_test_key_needs_a_worker_that_admits_it(
    sessions: dict[str, MixingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPDIST_TEST_KEYS")
    fixed = replace(sessions["north"], test_key="11" * 32)
    assert client.join(fixed).error.startswith("ContractBroken")
    monkeypatch.setenv("DPDIST_TEST_KEYS", "1")
    fixed = replace(fixed, attempt=str(uuid4()))
    well(client.join(fixed))
    assert np.array_equal(client_session.noise_of(fixed).words("x", 4), Noise(bytes.fromhex("11" * 32)).words("x", 4))


def test_the_charge_is_that_of_the_plan(sessions: dict[str, MixingSession], spec: MixingSpec) -> None:
    well(client.join(sessions["north"]))
    with client.closing(client_session.ledger_of(sessions["north"])) as ledger:
        attempt = ledger.attempt(sessions["north"].own_attempt)
    expected = planned(spec, order=ORDER, sigma_over_clip=SIGMA)
    assert json.loads(attempt.event or "") == expected.event.to_json()
    assert expected.noises == 3 + 3  # what the samplers lose is counted for all clients and pairs


def test_a_client_under_a_contract(spec: MixingSpec, sessions: dict[str, MixingSession]) -> None:
    """By the rule of a central release: a part of its own contract, on files that its custodian has checked."""
    north = sessions["north"]
    under = replace(north, under_contract=True)
    assert client.hello(under).error.startswith("ContractBroken")
    assert client.join(under).error.startswith("ContractBroken")
    well(client.hello(north))  # where the coordinator has none, a client needs none
    contract_of_client(spec, "north", minima={"class": {"low": 1_200, "high": 799}})
    assert client.hello(north).error.startswith("ContractBroken")
    contract_of_client(spec, "north", check=False)
    well(client.hello(under))
    assert client.join(under).error.startswith("ContractBroken")  # its input was never checked against this contract
    assert "dpdist contract check" in client_session.work_of(north).read_bytes("error.txt").decode()
    contract_of_client(spec, "north")
    well(client.join(under))
    assert states(spec) == {"": [], "north": ["reserved"], "south": [], "west": []}


def test_a_client_charges_no_other_data_set_for_its_files(spec: MixingSpec, sessions: dict[str, MixingSession]) -> None:
    """Once their time had changed, a data set without a contract was charged for them, in the same ledger."""
    contract_of_client(spec, "north")
    north = sessions["north"]
    Books.open(north.client.ledger or "").create_dataset("free", epsilon=1000, delta="1e-3")
    tree = spec.model_dump(mode="json", by_alias=True)
    tree["federated"]["clients"][0]["dataset"] = "free"
    free = replace(north, spec=load(tree))
    os.utime(north.client.paths[0])
    for task in (client.hello, client.join):
        assert task(free).error.startswith("ContractBroken")
    assert "belongs to data set 'people-north'" in client_session.work_of(free).read_bytes("error.txt").decode()


def test_the_contract_says_which_columns_there_are_besides(
    spec: MixingSpec, sessions: dict[str, MixingSession]
) -> None:
    """Not the spec: `extra_columns` of a spec is not looked at where there is a contract."""
    file = Path(sessions["west"].client.paths[0])
    people = table(3_000, seed=2)
    pq.write_table(people.append_column("zip", people["age"]), file)
    assert client.hello(sessions["west"]).error.startswith("DataError")
    with pytest.raises(ColumnMismatch, match="extra_columns"):
        contract_of_client(spec, "west")
    contract_of_client(spec, "west", data={"path": str(file), "extra_columns": "ignore"})
    for task in (client.hello, client.join, client.read):
        well(task(sessions["west"]))
