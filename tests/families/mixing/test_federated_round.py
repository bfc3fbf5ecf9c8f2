"""Federated releases on real worker processes, one of each client: drop-outs, lies, and the ledgers after."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import parts
from federations import (
    NAMES,
    SCHEMA,
    ClientProcesses,
    at,
    contract_of_client,
    federation,
    member,
    states,
    summing_federation,
)
from reading import readable
from releases import KEY

from dpdist.errors import ClusterUnreachable, ContractBroken, RoundFailed, SpecError
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated.spec import FederatedRelease
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import verify
from dpdist.spec.contract import Contract

pytestmark = pytest.mark.slow
COMMITTED, DRAWN = ({name: [state] for name in ("", *NAMES)} for state in ("committed", "drawing"))


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientProcesses]:
    """A cluster of three clients."""
    processes = ClientProcesses(tmp_path_factory.mktemp("clients"))
    processes.start()
    yield processes
    processes.stop()


@pytest.fixture
def cluster(clients: ClientProcesses) -> Iterator[ClientProcesses]:
    """The same, whole and honest."""
    clients.start()
    yield clients
    for name in NAMES:
        clients.lie(name, "")


@pytest.fixture
def spec_on(tmp_path: Path, cluster: ClientProcesses) -> Callable[..., MixingSpec]:
    """A spec that runs on the cluster."""

    def make(**changes: Any) -> MixingSpec:
        on = {"mode": "address", "address": cluster.address, "timeout": 180}
        return federation(tmp_path, cluster=on, **changes)

    return make


@pytest.fixture(scope="module")
def calm(clients: ClientProcesses, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The release where nothing goes wrong."""
    folder = tmp_path_factory.mktemp("calm")
    clients.start()
    spec = federation(folder, cluster={"mode": "address", "address": clients.address, "timeout": 180})
    run_release(spec, fixed_key=KEY)
    assert verify(spec.output.path).records == 2_000
    assert states(spec) == COMMITTED
    return parts(Path(spec.output.path))


def whole(spec: MixingSpec, calm: list[bytes]) -> None:
    """The release is what it is without faults, and was charged once in every ledger."""
    verify(spec.output.path)
    assert parts(Path(spec.output.path)) == calm
    assert states(spec) == COMMITTED


def unpublished(spec: MixingSpec) -> bool:
    return not (Path(spec.output.path) / "_manifest.json").exists()


def manifest(spec: FederatedRelease) -> Manifest:
    return Manifest.from_bytes((Path(spec.output.path) / "_manifest.json").read_bytes())


def test_a_new_attempt_goes_on_without_the_client_that_is_gone(
    spec_on: Callable[..., MixingSpec], cluster: ClientProcesses
) -> None:
    spec = spec_on(cluster__timeout=3)
    with pytest.raises(RoundFailed, match=r"'west' \(it has no worker any more\) dropped out during the round"):
        run_release(spec, progress=at("mixing class 1 of 2, part 1", lambda: cluster.stop_client("west")))
    assert states(spec) == DRAWN
    run_release(spec, attempt="replace")
    both = ["abandoned", "committed"]
    assert states(spec) == {"": both, "north": both, "south": both, "west": ["drawing"]}
    parameters = manifest(spec).parameters
    assert parameters["clients"] == 2
    assert [mixed["records_in_a_mixture"] for mixed in parameters["mixed"]] == [16, 16]  # type: ignore[index]


def test_sums_go_on_without_the_client_that_is_gone(cluster: ClientProcesses, tmp_path: Path) -> None:
    on = {"mode": "address", "address": cluster.address, "timeout": 3}
    small = {"model__rounds": 0, "model__balance": 0, "privacy__epsilon": 0.5}
    spec = summing_federation(tmp_path, cluster=on, federated__at_least=2, **small)
    run_release(spec, progress=at("asking for grids", lambda: cluster.stop_client("west")))
    assert states(spec) == COMMITTED | {"west": ["drawing"]}
    parameters = manifest(spec).parameters
    assert (parameters["clients"], parameters["clients_lost"]) == (3, 1)


def test_too_few_clients_begin_nothing(clients: ClientProcesses, tmp_path: Path) -> None:
    if "west" in clients.workers:
        clients.stop_client("west")
    with clients.client() as asked:
        while len(asked.scheduler_info(n_workers=-1)["workers"]) > 2:
            time.sleep(0.05)  # until the scheduler has noticed it
    on = {"mode": "address", "address": clients.address, "timeout": 2}
    spec = federation(tmp_path, cluster=on, federated__at_least=3)
    with pytest.raises(RoundFailed, match=r"2 of 3 clients are ready.*'west' \(it has no worker\)"):
        run_release(spec)
    assert states(spec) == {"": ["void"], "north": ["void"], "south": ["void"], "west": []}
    assert unpublished(spec)


def test_a_worker_that_is_started_again_sends_the_same(
    spec_on: Callable[..., MixingSpec], cluster: ClientProcesses, calm: list[bytes]
) -> None:
    cluster.kill_in("west", "client-send-west")
    spec = spec_on()
    run_release(spec, fixed_key=KEY)
    assert not (cluster.faults("west") / "worker").exists()
    whole(spec, calm)


def test_a_drop_out_during_the_round_fails_it_and_a_resume_draws_nothing_again(
    spec_on: Callable[..., MixingSpec], cluster: ClientProcesses, calm: list[bytes]
) -> None:
    spec = spec_on(cluster__timeout=3)
    lose = at("mixing class 2 of 2, part 1", lambda: cluster.stop_client("west"))
    with pytest.raises(RoundFailed, match=r"client 'west' \(it has no worker any more\) dropped out during the round"):
        run_release(spec, fixed_key=KEY, progress=lose)
    assert unpublished(spec)
    assert states(spec) == DRAWN
    cluster.start()
    run_release(spec_on(), fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_charges_are_not_given_back_once_a_client_has_read(
    spec_on: Callable[..., MixingSpec], cluster: ClientProcesses, calm: list[bytes], tmp_path: Path
) -> None:
    ledgers = {name: tmp_path / name / "ledger.db" for name in ("south", "west")}

    def hide() -> None:
        for file in ledgers.values():
            file.rename(file.with_suffix(".away"))

    spec = spec_on()
    with pytest.raises(RoundFailed, match=r"'south', 'west' \(LedgerError.*dropped out during the round"):
        run_release(spec, fixed_key=KEY, progress=at("confirming classes", hide))
    ledgers["south"].with_suffix(".away").rename(ledgers["south"])
    cluster.stop_client("west")  # its table is no longer in memory
    cluster.start()
    with pytest.raises(RoundFailed, match=r"'west' \(LedgerError.*dropped out during the round"):
        run_release(spec, fixed_key=KEY, attempt="resume")
    ledgers["west"].with_suffix(".away").rename(ledgers["west"])
    assert states(spec) == DRAWN
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_a_client_lost_after_the_round_holds_the_release_back_until_it_commits(
    spec_on: Callable[..., MixingSpec], cluster: ClientProcesses, calm: list[bytes]
) -> None:
    spec = spec_on(cluster__timeout=3)
    with pytest.raises(ClusterUnreachable, match="'west' is away"):
        run_release(spec, fixed_key=KEY, progress=at("writing", lambda: cluster.stop_client("west")))
    assert unpublished(spec)
    assert states(spec) == DRAWN
    cluster.start()
    run_release(spec_on(), fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_a_coordinator_that_dies_between_the_clients_commits_is_resumed(
    spec_on: Callable[..., MixingSpec], calm: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        """Stands for the end of the process."""

    spec = spec_on()
    plain = Books.commit

    def die(self: Books, *args: Any, **kwargs: Any) -> None:
        raise Died

    monkeypatch.setattr(Books, "commit", die)  # the coordinator's: the clients commit in their own processes
    with pytest.raises(Died):
        run_release(spec, fixed_key=KEY)
    monkeypatch.setattr(Books, "commit", plain)
    assert states(spec) == COMMITTED | {"": ["drawing"]}
    assert unpublished(spec)
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_a_class_is_mixed_by_the_clients_that_have_it(spec_on: Callable[..., MixingSpec], tmp_path: Path) -> None:
    member(tmp_path, "west", seed=2, high=0.0)
    spec = spec_on()
    run_release(spec)
    mixed = manifest(spec).parameters["mixed"]
    assert [(part["value"], part["clients"]) for part in mixed] == [("high", 2), ("low", 3)]  # type: ignore[index,union-attr,call-overload]
    assert states(spec) == COMMITTED
    assert verify(spec.output.path).records == 2_000


def test_a_table_that_cannot_be_used_ends_the_round_and_leaves_the_charges(
    spec_on: Callable[..., MixingSpec], tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    spec = spec_on()
    bad = pa.table({"age": [4711] * 3_000, "class": ["low"] * 3_000, "sex": ["F"] * 3_000})
    pq.write_table(bad, tmp_path / "west" / "people.parquet")
    with pytest.raises(RoundFailed, match=r"'west' \(DataError: The table cannot be used\).*the charges stay") as error:
        run_release(spec)
    assert "4711" not in readable(str(error.value))
    assert states(spec) == DRAWN
    trouble = next((tmp_path / "west" / "work").glob("*/error.txt")).read_text()
    assert "column 'age'" in trouble  # its own operator reads more
    assert unpublished(spec)


def test_a_client_without_budget_is_left_out(spec_on: Callable[..., MixingSpec], tmp_path: Path) -> None:
    member(tmp_path, "west")
    (tmp_path / "west" / "ledger.db").unlink()
    small = Books.open(f"sqlite:///{tmp_path}/west/ledger.db")
    small.create_dataset("people-west", epsilon=1, delta="1e-5")
    small.close()
    spec = spec_on()
    said: list[str] = []
    run_release(spec, progress=lambda stage, *_: said.append(stage))
    assert any("left out: 'west' (BudgetExceeded" in text for text in said)
    assert states(spec) == COMMITTED | {"west": []}


def test_a_round_under_a_contract(spec_on: Callable[..., MixingSpec], calm: list[bytes]) -> None:
    """The coordinator's contract names the clients; each needs a contract of its own, which admits its files."""
    spec = spec_on()
    keys = {name: key for name, key in spec.clients.items() if key is not None}
    tree = {"schema": SCHEMA, "minimum_records": 2_000, "epsilon": 50, "delta": "1e-5"}
    tree |= {"minima": {"class": {"low": 1_200, "high": 800}}, "data": {"clients": keys}}
    ledger = Books.open(spec.ledger)
    for number, (changes, why) in enumerate(
        [
            ({"data": {"path": "people.parquet"}}, r"federated.clients: the contract has no 'north', 'south', 'west'"),
            ({"data": {"clients": {**keys, "west": keys["north"]}}}, r"federated.clients: the contract has no 'west'"),
            ({"minima": {"class": {"low": 1_200}}}, r"the minimum of class 'high' is above the declared one"),
        ]
    ):
        ledger.amend("people", Contract.model_validate(tree | changes), reason=f"attempt {number}")
        with pytest.raises(ContractBroken, match=why):
            run_release(spec)
    ledger.amend("people", Contract.model_validate(tree), reason="as it is")
    for name in ("north", "south"):
        contract_of_client(spec, name)
    said: list[str] = []
    run_release(spec, progress=lambda stage, *_: said.append(stage))
    assert any("left out: 'west' (ContractBroken" in text for text in said)
    assert states(spec) == COMMITTED | {"west": []}


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ("shape", "'west' sent no array of 800 x 3 int64"),
        ("nan", "'west' sent no array of 800 x 3 int64"),
        ("huge", "'west' sent values beyond what noise reaches"),
        ("foreign", "'west' sent something else than its message"),
        ("nothing", "'west' sent something else than its message"),
    ],
)
def test_a_client_that_sends_what_does_not_fit_fails_the_round(
    lie: str, message: str, spec_on: Callable[..., MixingSpec], cluster: ClientProcesses
) -> None:
    cluster.lie("west", lie)
    spec = spec_on()
    with pytest.raises(RoundFailed, match=message):
        run_release(spec, fixed_key=KEY)
    assert unpublished(spec)
    assert states(spec) == DRAWN
    assert not list(Path(spec.work).glob("*/mixtures-*"))


def test_a_client_that_draws_again_is_found_out(spec_on: Callable[..., MixingSpec], cluster: ClientProcesses) -> None:
    spec = spec_on(cluster__timeout=3)
    cluster.lie("north", "again")
    cluster.lie("west", "shape")
    with pytest.raises(RoundFailed, match="'west'"):
        run_release(spec, fixed_key=KEY)
    cluster.lie("west", "")
    with pytest.raises(RoundFailed, match="'north' sent two different messages in one round"):
        run_release(spec, fixed_key=KEY, attempt="resume")
    assert unpublished(spec)
    assert states(spec) == DRAWN


def test_a_worker_with_the_resource_but_without_the_identity_is_left_out(
    spec_on: Callable[..., MixingSpec], cluster: ClientProcesses
) -> None:
    cluster.lie("west", "forged")
    spec = spec_on()
    said: list[str] = []
    run_release(spec, progress=lambda stage, *_: said.append(stage))
    assert any("in the name of client 'west' is not signed" in text for text in said)
    assert manifest(spec).parameters["clients"] == 2
    assert states(spec)["west"] == ["void"]


def test_a_worker_with_the_resources_of_two_clients_is_refused(
    spec_on: Callable[..., MixingSpec], cluster: ClientProcesses
) -> None:
    cluster.start_client("intruder", resources="client-west=1,client-south=1")
    try:
        cluster.wait_for(4)
        spec = spec_on()
        with pytest.raises(SpecError, match="a worker offers the resources of south and west"):
            run_release(spec)
        assert states(spec) == {"": ["void"], "north": [], "south": [], "west": []}
    finally:
        cluster.stop_client("intruder")
