"""A release through the caller's own client, which stays open: a LocalCluster, TLS by hand, a scheduler file."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import releases
from clusters import DaskProcesses
from distributed import Client, LocalCluster
from distributed.security import Security
from releases import in_memory as spec

import dpdist
from dpdist.cluster.certificates import write_certificates
from dpdist.cluster.opening import executor_of

TABLE = releases.table(3_000)
SETTINGS = {"cluster.partitions": 3}


class Place:
    """A folder with a ledger, and what the table gives without a cluster."""

    def __init__(self) -> None:
        self.ledger = dpdist.Ledger("sqlite:///ledger.db")
        self.ledger.create("people", epsilon=20, delta="1e-4")
        self.expected = self.release("here")

    def release(self, name: str, **options: Any) -> list[str]:
        """The digests of the parts of a release."""
        made = dpdist.release(spec(name), data=TABLE, ledger=self.ledger, test_key=releases.KEY, **options)
        return [part.sha256 for part in made.manifest.parts]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    return Place()


def alive(client: Client) -> bool:
    """Whether a client still computes on the workers it had."""
    return bool(client.status == "running" and client.submit(sum, [1, 2], pure=False).result(30) == 3)


def test_a_local_cluster(place: Place) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        has_bokeh = find_spec("bokeh") is not None
        assert (executor_of(client).dashboard is not None) == has_bokeh  # what is announced is there
        assert place.release("there", client=client, settings=SETTINGS) == place.expected
        assert alive(client)
        Path("scheduler.json").write_text(json.dumps({"address": cluster.scheduler_address}))
        by_file = {"cluster.mode": "address", "cluster.scheduler_file": "scheduler.json"}
        assert place.release("third", settings=SETTINGS | by_file) == place.expected
        assert alive(client)


def test_processes_with_certificates_made_by_hand_by_address_and_by_scheduler_file(place: Place) -> None:
    """As ``dask scheduler --scheduler-file`` and ``dask worker`` are started by hand, or by a batch system."""
    write_certificates(Path("tls"))
    files = {"tls_ca_file": "tls/ca.pem", "tls_client_cert": "tls/client.pem", "tls_client_key": "tls/client-key.pem"}
    security = Security(require_encryption=True, **files)
    cluster = DaskProcesses(Path.cwd(), certificates=Path("tls").absolute())
    try:
        cluster.start()
        with Client(cluster.address, security=security, timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            workers = set(client.scheduler_info(n_workers=-1)["workers"])
            assert all(worker.startswith("tls://") for worker in workers)
            assert place.release("by-address", client=client, settings=SETTINGS) == place.expected
            assert alive(client)
            with Client(scheduler_file="scheduler.json", security=security) as other:
                assert place.release("by-file", client=other, settings=SETTINGS) == place.expected
                assert alive(other)
            assert alive(client)
            assert set(client.scheduler_info(n_workers=-1)["workers"]) == workers
    finally:
        cluster.stop()
