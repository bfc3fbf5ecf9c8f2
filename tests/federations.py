"""Small federations: clients with a table, a ledger, a folder and an identity each, and a spec of them all."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from clusters import DaskProcesses
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from distributed import Client, Security
from releases import dotted, fund

from dpdist.errors import RoundFailed
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.families.synthesis.stages import SynthesisSession
from dpdist.federated.mailbox import MailboxClient
from dpdist.federated.messages import identity_text
from dpdist.federated.spec import FederatedRelease
from dpdist.ledger import Books
from dpdist.ledger.signing import load_signing_key
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import Run
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.validation import override

SCHEMA: dict[str, Any] = {
    "attributes": [
        {"name": "age", "kind": "integer", "bounds": [0, 59]},
        {"name": "class", "kind": "categorical", "values": ["low", "high"]},
        {"name": "sex", "kind": "categorical", "values": ["F", "M"]},
    ]
}
NAMES = ("north", "south", "west")
TEST_KEYS = "1"


def table(rows: int, *, seed: int, high: float = 0.4) -> pa.Table:
    """An invented table of the schema above."""
    rng = np.random.default_rng(seed)
    label = (rng.random(rows) < high).astype(int)
    return pa.table(
        {
            "age": np.clip(rng.normal(20 + 20 * label, 8, rows), 0, 59).astype(int),
            "class": pa.array(np.array(["low", "high"])[label]),
            "sex": pa.array(np.array(["F", "M"])[rng.integers(0, 2, rows)]),
        }
    )


def identity(folder: Path, key: bytes | None = None) -> str:
    """Make a client's identity below its folder (a given one, or a new one), unless it has one; its public half."""
    file = folder / "identity.pem"
    if not file.exists():
        file.touch(mode=0o600)
        private = Ed25519PrivateKey.from_private_bytes(key) if key else Ed25519PrivateKey.generate()
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(pem)
    made = load_signing_key(file)
    assert made is not None
    return identity_text(made)


def member(
    folder: Path, name: str, *, rows: int = 3_000, seed: int = 0, key: bytes | None = None, **table_settings: Any
) -> dict[str, Any]:
    """Make a client below `folder`; return its part of a spec."""
    own = folder / name
    if not own.exists():
        own.mkdir(parents=True)
        pq.write_table(table(rows, seed=seed, **table_settings), own / "people.parquet")
        create_ledger(own, f"people-{name}")
    return {
        "name": name,
        "path": str(own / "people.parquet"),
        "dataset": f"people-{name}",
        "ledger": f"sqlite:///{own}/ledger.db",
        "work": str(own / "work"),
        "identity": str(own / "identity.pem"),
        "public_key": identity(own, key),
    }


def create_ledger(folder: Path, dataset: str) -> None:
    """A ledger with one data set."""
    fund(f"sqlite:///{folder}/ledger.db", dataset)


def contract_of_client(spec: MixingSpec, name: str, *, check: bool = True, **changes: Any) -> Contract:
    """Give the data set of a client a contract of which the spec is a part, and admit its files."""
    assert spec.federated is not None
    (client,) = (one for one in spec.federated.clients if one.name == name)
    tree: dict[str, Any] = {"schema": SCHEMA, "data": {"path": client.path}, "minimum_records": 2_000}
    tree |= {"minima": {"class": {"low": 1_200, "high": 800}}, "epsilon": 50, "delta": "1e-5", **changes}
    contract = Contract.model_validate(tree)
    ledger = Books.open(client.ledger or "")
    ledger.amend(client.dataset, contract, reason="its custodian declares what may be asked")
    if check:
        found = check_input(contract)
        assert found.problems == ()
        ledger.admit_input(client.dataset, fingerprint=found.fingerprint, contract=contract.digest)
    ledger.close()
    return contract


def spec_of_clients(folder: Path, kind: str, names: Iterable[str], of: dict[str, Any], changes: dict[str, Any]) -> Any:
    """A spec of clients below `folder`, all in this process, with a ledger of the coordinator; `of` are its sections,
    `changes` by path, ``__`` for dots.
    """
    if not (folder / "ledger.db").exists():
        create_ledger(folder, "people")
    tree: dict[str, Any] = {
        "kind": kind,
        "name": "together",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"minimum_records": 8_000},
        "output": {"path": str(folder / "release"), "rows_per_part": 1_000},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster": {"mode": "in-process"},
        "federated": {
            "trust": "correlated",
            "clients": [member(folder, name, seed=number) for number, name in enumerate(names)],
        },
    }
    return load(override(tree | of, dotted(changes)))


def federation(folder: Path, names: Iterable[str] = NAMES, **changes: Any) -> MixingSpec:
    """Mixtures of clients below `folder`, on a cluster of this process."""
    of = {
        "data": {"minimum_records": 2_000},
        "cluster": {"mode": "embedded", "memory_limit": "512MiB", "timeout": 180},
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "mixing": {
            "class": "class",
            "classes": {"low": {"minimum": 1_200, "records": 1_200}, "high": {"minimum": 800, "records": 800}},
            "order": 8,
        },
    }
    spec = spec_of_clients(folder, "mixing", names, of, changes)
    assert isinstance(spec, MixingSpec)
    return spec


def summing_federation(folder: Path, names: Iterable[str] = NAMES, **changes: Any) -> WholeSynthesisSpec:
    """A synthesis of clients below `folder`."""
    of = {"privacy": {"epsilon": 1, "delta": 1e-9}, "synthesis": {"records": 2_000}}
    spec = spec_of_clients(folder, "synthesis", names, of, changes)
    assert isinstance(spec, WholeSynthesisSpec)
    return spec


def counting_federation(folder: Path, names: Iterable[str] = NAMES, **changes: Any) -> HistogramSpec:
    """Histograms of clients below `folder`."""
    of = {
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": [{"columns": ["age"]}, {"columns": ["class", "sex"]}],
        "counts": {"entropies": [1.0]},
    }
    spec = spec_of_clients(folder, "histogram", names, of, changes)
    assert isinstance(spec, HistogramSpec)
    return spec


def predicting_federation(folder: Path, names: Iterable[str] = NAMES, **changes: Any) -> TwoStageSpec:
    """A private two-stage release of clients below `folder`."""
    of = {
        "privacy": {"guarantee": "dp", "epsilon": 2, "delta": 1e-6},
        "prediction": {"response": "age", "records": 2_000},
    }
    spec = spec_of_clients(folder, "two-stage", names, of, changes)
    assert isinstance(spec, TwoStageSpec)
    return spec


def posted_federation(
    folder: Path, names: Iterable[str] = NAMES, make: Callable[..., Any] = summing_federation, **changes: Any
) -> Any:
    """A federation by a mailbox below `folder`."""
    (folder / "box").mkdir(exist_ok=True)
    (folder / "coordinator").mkdir(exist_ok=True)
    signed = {"federated__public_key": identity(folder / "coordinator")}
    signed["federated__identity"] = str(folder / "coordinator" / "identity.pem")
    box = {"federated__mailbox": str(folder / "box"), "cluster__timeout": 20}
    return make(folder, names, **{**box, **signed, **changes})


def released(spec: WholeSynthesisSpec, *, attempt: Any = "new", key: str | None = "5a" * 32) -> bytes:
    """The bytes of the records that a release publishes."""
    with Run(spec, attempt=attempt, fixed_key=key) as run:
        run.finish()
    return b"".join(path.read_bytes() for path in sorted(Path(spec.output.path).rglob("*.parquet")))


def attended(spec: WholeSynthesisSpec, name: str, outcomes: dict[str, Any]) -> threading.Thread:
    """A thread in which a client answers by mailbox."""

    def attend() -> None:
        try:
            outcomes[name] = MailboxClient(spec, name, SynthesisSession).attend(patience=20)
        except RoundFailed as error:
            outcomes[name] = str(error)

    thread = threading.Thread(target=attend)
    thread.start()
    return thread


def at(stage: str, act: Callable[[], Any]) -> Callable[[str, int, int], None]:
    """Progress that acts once, when a stage begins."""
    done: list[str] = []

    def progress(name: str, *_: int) -> None:
        if name == stage and not done:
            done.append(name)
            act()

    return progress


def states(spec: FederatedRelease) -> dict[str, list[str]]:
    """The states of all attempts in the ledger of each client, and in the coordinator's (``""``); all are whole."""
    assert spec.federated is not None
    books = {client.name: (client.ledger or "", client.dataset) for client in spec.federated.clients}
    found = {}
    for name, (url, dataset) in {"": (spec.ledger, spec.dataset), **books}.items():
        ledger = Books.open(url, create=False)
        ledger.verify(dataset)
        found[name] = [attempt.state for attempt in ledger.show(dataset).attempts]
        ledger.close()
    return found


class ClientProcesses(DaskProcesses):
    """A scheduler and a worker of each client, with its resource; a client kills its worker, or lies, on order."""

    LIES = Path(__file__).parent / "faults" / "client_faults.py"

    def __init__(self, folder: Path, names: Iterable[str] = NAMES, **settings: Any) -> None:
        super().__init__(folder, memory="700MiB", **settings)
        self.names = tuple(names)
        self.workers: dict[str, Any] = {}

    def start(self) -> None:
        """Start what is not running, with the workers of all clients."""
        if not self.processes:
            log = {"DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "100000"}
            self.processes = [self._start("scheduler", "--port", str(self.port), **log)]
        for name in self.names:
            self.start_client(name)
        self.wait_for(len(self.names))

    def wait_for(self, workers: int) -> None:
        """Wait until this many workers have come."""
        with self.client() as client:
            client.wait_for_workers(workers, timeout=120)

    def client(self) -> Client:
        """A client of the cluster."""
        security = None
        if self.certificates is not None:
            files = (f"{self.certificates}/{name}.pem" for name in ("ca", "client", "client-key"))
            security = Security(**dict(zip(("tls_ca_file", "tls_client_cert", "tls_client_key"), files, strict=True)))
        return Client(self.address, security=security, set_as_default=False, timeout=180)

    def start_client(self, name: str, *, resources: str = "") -> None:
        """Start the worker of a client, unless it runs."""
        if name in self.workers and self.workers[name].poll() is None:
            return
        own = self.faults(name)
        offered = resources or f"client-{name}=1"
        options = ["--nthreads", "1", "--memory-limit", self.memory, "--death-timeout", "180", "--name", name]
        options += ["--local-directory", str(own), "--no-dashboard", "--resources", offered]
        options += ["--preload", str(self.LIES)]
        variables = {"DPDIST_FAULTS": str(own), "DPDIST_TEST_KEYS": TEST_KEYS}
        self.workers[name] = self._start("worker", self.address, *options, **variables)
        self.processes.append(self.workers[name])

    def faults(self, name: str) -> Path:
        """The folder of a client's worker, which holds its orders."""
        folder = self.folder / f"worker-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def stop_client(self, name: str) -> None:
        """SIGKILL the worker of a client with its nanny."""
        process = self.workers.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        self.processes.remove(process)

    def kill_in(self, name: str, task: str, *, state: str = "executing") -> None:
        """Let the worker of a client die when a task reaches a state; its nanny starts it again."""
        (self.faults(name) / "worker").write_text(f"{task} {state} kill")

    def lie(self, name: str, lie: str) -> None:
        """Let a client lie; an empty lie ends it."""
        (self.faults(name) / "lie").write_text(lie)
