"""What leaves a client: on whose workers its tasks ran, and every byte that its workers sent."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from federations import NAMES, create_ledger, federation, identity, table
from wires import Ran, WiredClients

from dpdist.families.mixing.spec import MixingSpec
from dpdist.lifecycle.run import run_release
from dpdist.publish.verify import verify

RECORDS = {"low": 60_000, "high": 40_000}
MESSAGES = 8 * 3 * sum(RECORDS.values())  # bytes: int64, three coordinates
PLANTED = {name: f"planted-{name}-4711" for name in NAMES}


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[MixingSpec, WiredClients, list[Any], dict[str, int]]]:
    """A release with planted values: its spec, the cluster, the scheduler's transitions, bytes before the round."""
    folder = tmp_path_factory.mktemp("wired")
    for number, name in enumerate(NAMES):
        own = folder / name
        own.mkdir()
        rows = table(3_000, seed=number)
        remark = pa.array([f"{PLANTED[name]}-{row}" for row in range(rows.num_rows)])
        pa.csv.write_csv(rows.append_column("remark", remark), own / "people.csv")
        create_ledger(own, f"people-{name}")
    clients = [
        {
            "name": name,
            "path": str(folder / name / "people.csv"),
            "dataset": f"people-{name}",
            "ledger": f"sqlite:///{folder}/{name}/ledger.db",
            "work": f"{folder}/{name}/work",
            "identity": f"{folder}/{name}/identity.pem",
            "public_key": identity(folder / name),
        }
        for name in NAMES
    ]
    processes = WiredClients(tmp_path_factory.mktemp("processes"))
    processes.start()
    spec = federation(
        folder,
        data__extra_columns="ignore",
        cluster={"mode": "address", "address": processes.address, "timeout": 180},
        mixing__classes={"low": {"minimum": 1_200, "records": 60_000}, "high": {"minimum": 800, "records": 40_000}},
        privacy__epsilon=12,
        federated__clients=clients,
    )
    before = {name: len(processes.left(name)) for name in NAMES}
    with processes.client() as client:
        client.register_plugin(Ran())
        run_release(spec)
        transitions = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.plugins["ran"].seen)
        processes.state = client.run_on_scheduler(lambda dask_scheduler: repr(dask_scheduler._to_dict()))  # type: ignore[attr-defined]
    yield spec, processes, transitions, before
    processes.stop()


def test_every_task_of_a_client_ran_on_its_own_worker(ran: Any) -> None:
    _, processes, transitions, _ = ran
    own = {name: processes.contact(name) for name in NAMES}
    stages = set()
    for key, finish, worker in transitions:
        match = re.match(r"client-(\w+)-(\w+)-", key)
        assert match, f"{key} is no task of a client: the cluster runs nothing else"
        stage, name = match.groups()
        assert worker == own[name], key
        stages.add((stage, finish))
    assert stages == {
        (stage, finish)
        for stage in ("hello", "join", "read", "confirm", "send", "ready", "commit")
        for finish in ("processing", "memory")
    }


def test_the_bytes_that_left_a_worker_are_its_noisy_mixtures(ran: Any) -> None:
    spec, processes, _, before = ran
    assert verify(spec.output.path).records == 100_000
    for name in NAMES:
        left = len(processes.left(name)) - before[name]
        assert MESSAGES < left < 1.1 * MESSAGES, name


def test_what_was_planted_is_nowhere_else(ran: Any, tmp_path: Path) -> None:
    spec, processes, _, _ = ran
    folder = Path(spec.work).parent
    places = {f"bytes from {name}": processes.left(name) for name in NAMES}
    places["state of the scheduler"] = processes.state.encode()
    for root in (folder, processes.folder):
        places |= {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert b"client-send-west" in places["bytes from west"]  # what is in clear would be seen
    assert PLANTED["west"].encode() in places[str(folder / "west" / "people.csv")]
    for name in NAMES:
        ages = pa.csv.read_csv(folder / name / "people.csv")["age"].to_numpy()
        runs = [
            ages[start : start + 24].astype(kind).tobytes() for start in (0, 1500) for kind in (np.uint8, np.float32)
        ]
        texts = [PLANTED[name].encode(), *runs]
        found = {place for place, content in places.items() if any(text in content for text in texts)}
        assert found <= {str(path) for path in (folder / name).rglob("*")}, name
