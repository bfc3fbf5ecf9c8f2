"""What a client does for itself: it sends what it was charged for, once, with whom it knows, and says little else."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from federations import NAMES, federation, states, table

from dpdist.families.mixing.federated import client
from dpdist.families.mixing.federated import client_session as seat
from dpdist.families.mixing.federated.client import Joined
from dpdist.families.mixing.federated.client_calls import seat_of
from dpdist.families.mixing.federated.client_session import Seat
from dpdist.families.mixing.federated.correlated import Masks
from dpdist.families.mixing.federated.messages import Message, assemble
from dpdist.families.mixing.mixture import clip_rows
from dpdist.families.mixing.plan import planned
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.registry import make_plan
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.noise import Noise

ORDER, SIGMA = 8, 0.3


@pytest.fixture
def spec(tmp_path: Path) -> MixingSpec:
    return federation(tmp_path)


@pytest.fixture
def seats(spec: MixingSpec) -> dict[str, Seat]:
    """Seats of all clients in one round, in this process."""
    attempt = str(uuid4())
    return {name: Seat(spec=spec, name=name, order=ORDER, sigma_over_clip=SIGMA, attempt=attempt) for name in NAMES}


def well(answer: client.Answer) -> Any:
    assert answer.trouble == ""
    return answer.value


def joined(seats: dict[str, Seat]) -> dict[str, Joined]:
    """Go on to where messages are asked for."""
    members = {name: well(client.join(seat)) for name, seat in seats.items()}
    for one in seats.values():
        well(client.read(one))
        assert well(client.confirm(one)) == (True, True)
    return members


def steps(answer: client.Answer) -> np.ndarray:
    message = well(answer)
    assert isinstance(message, Message)
    return message.steps


def test_a_round_averages_the_mixtures_of_all(spec: MixingSpec, seats: dict[str, Seat]) -> None:
    for one in seats.values():
        well(client.hello(one))
    members = joined(seats)
    messages = [well(client.send(one, 0, 0, members)) for one in seats.values()]
    plan = seats["north"].plan
    mixer, round = plan.mixer(0), client.round_id(seats["north"].attempt, 0, 0)
    pinned = {c.name: c.public_key or "" for c in spec.federated.clients}  # type: ignore[union-attr]
    mixed = assemble(messages, mixer, clients=pinned, round=round, shape=(1_200, 3))
    # What each would have sent without masks, by its own key: the masks cancel.
    shared, alone = plan.shared(3), []
    for number, one in enumerate(seats.values()):
        people = table(3_000, seed=number)
        low = np.array(people["class"].to_pylist()) == "low"
        sex = (np.array(people["sex"].to_pylist()) == "M").astype(np.uint8)
        codes = [np.array(people["age"])[low].astype(np.uint8), sex[low]]
        rows = clip_rows(plan.encoding.encode(codes), clip=mixer.clip)
        own = replace(mixer, sigma=shared.sigma)
        alone.append(own.mixtures(seat.noise_of(one), rows, 0, 1_200).astype(np.float64))
    assert mixed == pytest.approx(np.mean(alone, axis=0), abs=1e-5)
    assert states(spec) == {"": [], **{name: ["drawing"] for name in NAMES}}
    digest = "0" * 64
    for task in (client.ready, client.commit, client.ready):
        for one in seats.values():
            well(task(one, digest))
    assert states(spec) == {"": [], **{name: ["committed"] for name in NAMES}}
    assert client.send(seats["west"], 1, 0, members).trouble.startswith("ReleaseConflict")


def test_shards_do_not_change_a_message(seats: dict[str, Seat], monkeypatch: pytest.MonkeyPatch) -> None:
    members = joined(seats)
    whole = steps(client.send(seats["south"], 0, 0, members))
    monkeypatch.setattr(client, "SHARD_BYTES", 4 * 3 * 500)
    assert np.array_equal(steps(client.send(seats["south"], 0, 0, members)), whole)
    seat.forget(seats["south"])  # as in another worker of the client
    assert np.array_equal(steps(client.send(seats["south"], 0, 0, members)), whole)


def test_less_noise_than_was_charged_is_refused(seats: dict[str, Seat]) -> None:
    members = joined(seats)
    for change in ({"sigma_over_clip": SIGMA / 2}, {"order": 16}):
        asked = replace(seats["north"], **change)  # type: ignore[arg-type]
        for answer in (client.send(asked, 0, 0, members), client.confirm(asked), client.read(asked)):
            assert answer.trouble.startswith("ReleaseConflict")


def test_a_class_is_mixed_with_the_same_clients_only(seats: dict[str, Seat], spec: MixingSpec) -> None:
    members = joined(seats)
    first = steps(client.send(seats["north"], 0, 0, members))
    fewer = {name: members[name] for name in ("north", "south")}
    assert client.send(seats["north"], 0, 0, fewer).trouble.startswith("RoundFailed")
    assert np.array_equal(steps(client.send(seats["north"], 0, 0, members)), first)
    for strangers in ({**members, "east": members["west"]}, {"north": members["north"], "west": members["west"]}):
        assert client.send(seats["south"], 0, 0, strangers).trouble.startswith("RoundFailed")
    assert client.send(seats["north"], 0, 7, members).trouble.startswith("RoundFailed")  # no such block


def test_a_key_that_its_client_did_not_sign_is_refused(seats: dict[str, Seat]) -> None:
    members = joined(seats)
    swapped = members | {"west": Joined(members["south"].public, members["west"].signature)}
    assert client.send(seats["north"], 0, 0, swapped).trouble.startswith("RoundFailed")
    other_round = replace(seats["west"], attempt=str(uuid4()))
    stale = well(client.join(other_round))
    assert client.send(seats["south"], 0, 0, members | {"west": stale}).trouble.startswith("RoundFailed")


def test_clients_are_not_told_the_ledger_of_the_coordinator(spec: MixingSpec) -> None:
    """Its URL may hold a password, and what a client is told passes the scheduler."""
    spec = spec.model_copy(update={"ledger": "postgresql://me:sesame@host/ledger"})
    context = SimpleNamespace(spec=spec, plan=make_plan(spec), key=KeyRef("a", "key.json"), attempt=str(uuid4()))
    told = seat_of(context, "north")  # type: ignore[arg-type]
    assert b"sesame" not in pickle.dumps(told)
    assert told.spec_hash == spec.fingerprint


def test_other_members_have_other_masks(seats: dict[str, Seat]) -> None:
    members = {name: well(client.join(one)) for name, one in seats.items()}

    def mask(names: tuple[str, ...]) -> Masks:
        return client._masks(seats["north"], 0, {name: members[name] for name in names})

    two, three = mask(("north", "south")), mask(NAMES)
    assert not set(two.noises[0].words("x", 8)) & set(three.noises[0].words("x", 8))


def test_a_class_that_was_not_confirmed_is_not_mixed(tmp_path: Path) -> None:
    spec = federation(tmp_path, mixing__classes__high={"minimum": 2_000, "records": 10})
    attempt = str(uuid4())
    seats = {n: Seat(spec=spec, name=n, order=ORDER, sigma_over_clip=SIGMA, attempt=attempt) for n in NAMES}
    members = {name: well(client.join(one)) for name, one in seats.items()}
    assert client.send(seats["north"], 0, 0, members).trouble.startswith("ReleaseConflict")  # nothing confirmed yet
    assert well(client.confirm(seats["north"])) == (True, False)
    assert steps(client.send(seats["north"], 0, 0, members)).shape == (1_200, 3)
    assert client.send(seats["north"], 1, 0, members).trouble.startswith("RoundFailed")


def test_files_that_change_are_noticed(seats: dict[str, Seat], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    one = seats["north"]
    well(client.join(one))
    pq.write_table(table(3_001, seed=9), tmp_path / "north" / "people.parquet")
    assert client.read(one).trouble.startswith("ReleaseConflict")
    assert client.join(one).trouble.startswith("ReleaseConflict")


def test_troubles_are_told_by_kind_alone(seats: dict[str, Seat], spec: MixingSpec, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bad = pa.table({"age": [4711], "class": ["low"], "sex": ["F"]})
    pq.write_table(bad, tmp_path / "west" / "people.parquet")
    well(client.join(seats["west"]))
    answer = client.read(seats["west"])
    assert answer.trouble == "DataError: The table cannot be used"
    assert "'age'" in next((tmp_path / "west" / "work").glob("*/trouble.txt")).read_text()
    well(client.void(seats["west"]))
    assert states(spec)["west"] == ["void"]
    assert client.read(seats["west"]).trouble.startswith("ReleaseConflict")
    (tmp_path / "south" / "people.parquet").unlink()
    assert client.hello(seats["south"]).trouble == "DataError: The table cannot be used"
    (tmp_path / "north" / "identity.pem").chmod(0o644)
    assert client.hello(seats["north"]).trouble.startswith("SpecError")


def test_the_folder_of_a_client_is_its_own_even_if_its_first_answer_is_a_trouble(
    seats: dict[str, Seat], tmp_path: Path
) -> None:
    ledger = tmp_path / "north" / "ledger.db"
    ledger.rename(ledger.with_suffix(".away"))
    assert client.hello(seats["north"]).trouble.startswith("LedgerError")
    work = tmp_path / "north" / "work"
    folders = [work, *work.iterdir()]
    assert [(folder.stat().st_mode & 0o777) for folder in folders] == [0o700, 0o700]
    assert (folders[1] / "trouble.txt").read_text()


def test_an_unforeseen_error_is_told_without_its_text(seats: dict[str, Seat], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise ValueError("the value planted-4711")

    monkeypatch.setattr(client, "table_of", fail)
    assert client.hello(seats["north"]).trouble == "an unforeseen ValueError"


def test_another_identity_than_the_pinned_one_is_refused(seats: dict[str, Seat], tmp_path: Path) -> None:
    (tmp_path / "south" / "identity.pem").rename(tmp_path / "north" / "identity.pem")
    assert client.hello(seats["north"]).trouble.startswith("SpecError")
    assert client.join(seats["north"]).trouble.startswith("SpecError")


def test_two_clients_of_one_data_set_are_refused(tmp_path: Path) -> None:
    shared = federation(tmp_path)
    tree = shared.model_dump(mode="json", by_alias=True)
    tree["federated"]["clients"][1] |= {key: tree["federated"]["clients"][0][key] for key in ("ledger", "dataset")}
    spec, attempt = MixingSpec.model_validate(tree), str(uuid4())
    seats = {n: Seat(spec=spec, name=n, order=ORDER, sigma_over_clip=SIGMA, attempt=attempt) for n in NAMES}
    well(client.join(seats["north"]))
    assert client.join(seats["south"]).trouble.startswith("SpecError")
    assert states(shared)["north"] == ["reserved"]


def test_a_fixed_test_key_needs_a_worker_that_admits_it(
    seats: dict[str, Seat], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = replace(seats["north"], test_key="11" * 32)
    assert client.join(fixed).trouble.startswith("SpecError")
    monkeypatch.setenv(seat.TEST_KEYS, "1")
    fixed = replace(fixed, attempt=str(uuid4()))
    well(client.join(fixed))
    assert np.array_equal(seat.noise_of(fixed).words("x", 4), Noise(bytes.fromhex("11" * 32)).words("x", 4))


def test_the_charge_is_that_of_the_plan(seats: dict[str, Seat], spec: MixingSpec) -> None:
    well(client.join(seats["north"]))
    with client.closing(seat.ledger_of(seats["north"])) as ledger:
        attempt = ledger.attempt(seats["north"].own_attempt)
    expected = planned(spec, order=ORDER, sigma_over_clip=SIGMA)
    assert json.loads(attempt.event or "") == expected.event.to_json()
    assert expected.noises == 3 + 3  # what the samplers lose is counted for all clients and pairs
