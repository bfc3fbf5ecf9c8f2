"""The whole house on 127.0.0.1: a release by Prefect deployment on Dask with TLS, S3 (Ceph) and PostgreSQL.

    python tests/e2e/run.py [--json FILE] [--kill] [--keep]

Starts everything, deploys, releases 100,000 records of the ACS 2024 table, verifies them, cancels a second
release in the middle and continues it, lets a third be refused for a value out of its domain, and then searches
all that PostgreSQL, Prefect, Dask and the store hold for planted private values and for the keys.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from servers import ROOT, Processes, answers, free_port, install_missing, wait_for

from dpdist.privacy.keys import KeyEncryptionKey

DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")) / "acs2024_workers.parquet"
SPEC = "deploy/releases/acs2024.yaml"
BUCKET = "s3://census"
PLANTED = "planted-person"
OUT_OF_DOMAIN = 987654321


class House:
    """Everything that runs, and what is known about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = Processes(folder)
        self.seconds: dict[str, float] = {}
        self.private: dict[str, str] = {}
        self.postgres = self.server = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Announce a step and time it."""
        print(f"==> {name}", flush=True)
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 1)
        print(f"    {self.seconds[name]} s", flush=True)

    def start(self) -> None:
        """Start the servers; all secrets are made here and reach processes through their environment only."""
        processes, folder, environment = self.processes, self.folder, self.processes.environment
        postgres, ceph = processes.script("postgres"), processes.script("ceph")
        processes.run("certs", folder / "tls", module="dpdist.cli.cluster")
        kek = base64.b64encode(secrets.token_bytes(32)).decode()
        (folder / "kek").touch(mode=0o600)
        (folder / "kek").write_text(kek)
        self.private["key-encryption key"] = kek

        database = postgres()
        self.postgres = database["url"].replace("+psycopg", "").removesuffix("/postgres")
        with psycopg.connect(f"{self.postgres}/postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE prefect")
            connection.execute("CREATE DATABASE ledger")
        self.server = f"http://127.0.0.1:{free_port()}/api"
        environment |= {
            "PYTHONPATH": str(ROOT),
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_DATABASE_CONNECTION_URL": self.postgres.replace("://", "+asyncpg://") + "/prefect",
            "PREFECT_API_URL": self.server,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
            "DPDIST_HOME": str(ROOT),
            "DPDIST_KEK_FILE": str(folder / "kek"),
            "DPDIST_LEDGER": self.postgres.replace("://", "+psycopg://") + "/ledger",
        }
        port = self.server.split(":")[2].split("/")[0]
        processes.start(
            "prefect", "server", "start", "--host", "127.0.0.1", "--port", port, "--no-ui", module="prefect"
        )

        storage = ceph()
        self.private["secret access key"] = storage["secret"]
        environment |= {
            "AWS_ENDPOINT_URL": storage["endpoint"],
            "AWS_ACCESS_KEY_ID": storage["key"],
            "AWS_SECRET_ACCESS_KEY": storage["secret"],
        }
        os.environ.update({name: environment[name] for name in environment if name not in os.environ})
        self.dask = f"tls://127.0.0.1:{free_port()}"
        common = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
        processes.start("scheduler", "scheduler", "--port", self.dask.split(":")[2], *common, *self._tls("scheduler"),
                        module="dask")  # fmt: skip
        for number in range(3):
            processes.start(
                f"worker-{number}", "worker", self.dask, "--nthreads", "1", "--memory-limit", "2GiB", *common,
                "--local-directory", str(folder / f"worker-{number}"), "--no-dashboard", *self._tls("worker"),
                module="dask",
            )  # fmt: skip
        wait_for("Prefect", answers(f"{self.server}/health"), seconds=90, alive=processes.alive)

    def _tls(self, role: str) -> list[str]:
        folder = self.folder / "tls"
        pairs = {"ca-file": "ca", "cert": role, "key": f"{role}-key"}
        options = [part for option, name in pairs.items() for part in (f"--tls-{option}", f"{folder}/{name}.pem")]
        return ["--protocol", "tls", *options]

    def fill(self) -> None:
        """Put two tables into the bucket: one with names in a column that no schema knows, one with a bad value."""
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.mkdir(BUCKET)
        table = pq.read_table(DATA)
        self.private["number of records"] = str(table.num_rows)
        names = pa.array([f"{PLANTED}-{row:07d}" for row in range(table.num_rows)])
        pq.write_table(table.append_column("respondent", names), self.folder / "named.parquet", row_group_size=1 << 18)
        fs.put_file(str(self.folder / "named.parquet"), f"{BUCKET}/input/workers.parquet")
        column = next(name for name in table.column_names if pa.types.is_integer(table.schema.field(name).type))
        place = table.column_names.index(column)
        bad = pa.array([OUT_OF_DOMAIN] * table.num_rows, pa.int64())
        pq.write_table(table.set_column(place, column, bad), self.folder / "bad.parquet")
        fs.put_file(str(self.folder / "bad.parquet"), f"{BUCKET}/bad/workers.parquet")
        self.private |= {"planted name": PLANTED, "planted value": str(OUT_OF_DOMAIN)}

    def settings(self, name: str, **changes: Any) -> dict[str, Any]:
        """What a run changes in the spec: where it runs and where its files are."""
        tls = self.folder / "tls"
        return {
            "name": name,
            "data.path": f"{BUCKET}/input",
            "data.extra_columns": "ignore",
            "output.path": f"{BUCKET}/releases/{name}",
            "work": f"{BUCKET}/work",
            "cluster.mode": "address",
            "cluster.address": self.dask,
            "cluster.partitions": 6,
            "cluster.timeout": 60,
            "cluster.security.ca": f"{tls}/ca.pem",
            "cluster.security.cert": f"{tls}/client.pem",
            "cluster.security.key": f"{tls}/client-key.pem",
            **changes,
        }

    def deploy(self) -> None:
        """Enter the data set, make the pool and the deployment, start a worker."""
        run = self.processes.run
        run(
            "ledger", "create", "acs", "--epsilon", "10", "--delta", "1e-7", "--allow", "dp", "--allow", "pd-per-record"
        )
        run("work-pool", "create", "dpdist", "--type", "process", module="prefect")
        run("--no-prompt", "deploy", "--name", "process", "--prefect-file", "deploy/prefect.yaml", module="prefect")
        self.processes.start(
            "flow-worker", "worker", "start", "--pool", "dpdist", "--type", "process", module="prefect"
        )

    def begin(self, name: str, **changes: Any) -> Any:
        """Start a run of the deployment."""
        from prefect.deployments import run_deployment

        parameters = {"spec": SPEC, "settings": self.settings(name, **changes)}
        return run_deployment("release/process", parameters=parameters, timeout=0, as_subflow=False)

    def finish(self, flow_run: Any, *, seconds: float = 180) -> Any:
        """Wait for the end of a flow run."""
        from prefect import get_client

        deadline = time.monotonic() + seconds
        with get_client(sync_client=True) as client:
            while time.monotonic() < deadline:
                state = client.read_flow_run(flow_run.id).state
                if state.is_final():
                    return state
                self.processes.alive()
                time.sleep(0.3)
        raise TimeoutError(f"{flow_run.name} is {state.type}")

    def attempts(self) -> dict[str, list[str]]:
        """States of the attempts of each release, as the ledger has them."""
        shown = json.loads(self.processes.run("ledger", "show", "--json"))[0]["charges"]
        found: dict[str, list[str]] = {}
        for charge in shown:
            found.setdefault(charge["release"], []).append(charge["state"])
        return found

    def note_key(self, prefix: str) -> bool:
        """While a run works: unwrap its key as a worker does, to search for it later."""
        import s3fs

        fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
        for path in fs.glob(f"{BUCKET}/work/*/key.json"):
            record = json.loads(fs.cat_file(path))
            kek = KeyEncryptionKey.find(self.folder / "kek")
            key = kek.unwrap(base64.b64decode(record["wrapped"]), attempt=record["attempt"])
            self.private[f"key of {prefix}, hex"] = key.hex()
            self.private[f"key of {prefix}, base64"] = base64.b64encode(key).decode()
            self.private[f"key of {prefix}, bytes"] = key.decode("latin-1")
            return True
        return False

    def client(self) -> Any:
        """A Dask client for looking at the cluster."""
        from distributed import Client, Security

        tls = self.folder / "tls"
        security = Security(
            tls_ca_file=f"{tls}/ca.pem", tls_client_cert=f"{tls}/client.pem", tls_client_key=f"{tls}/client-key.pem"
        )
        return Client(self.dask, security=security, set_as_default=False)


def release(house: House) -> None:
    """The release by deployment, verified."""
    start = time.perf_counter()
    flow_run = house.begin("acs2024")
    wait_for("the key", lambda: house.note_key("acs2024"), seconds=90, alive=house.processes.alive)
    state = house.finish(flow_run)
    house.seconds["the deployment alone"] = round(time.perf_counter() - start, 1)
    expect(state.is_completed(), f"the flow run is {state.type}: {state.message}")
    said = house.processes.run("verify", f"{BUCKET}/releases/acs2024")
    expect("verified, 100,000 records" in said, said)
    expect(house.attempts()["acs2024"] == ["committed"], "the ledger has one committed charge")


def plain(house: House) -> None:
    """The release by the command line: for comparison, and to warm up the workers."""
    settings = [f"--set={name}={value}" for name, value in house.settings("plain").items()]
    start = time.perf_counter()
    house.processes.run("release", SPEC, *settings)
    house.seconds["the command alone"] = round(time.perf_counter() - start, 1)
    house.processes.run("verify", f"{BUCKET}/releases/plain")


def cancel(house: House) -> None:
    """A run that is cancelled leaves no work on the cluster; the next one continues its attempt."""
    from prefect import get_client
    from prefect.states import Cancelling

    flow_run = house.begin("cancelled")
    with house.client() as client:

        def tasks() -> int:
            return int(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))

        wait_for("work on the cluster", tasks, seconds=90, alive=house.processes.alive)
        client.dump_cluster_state(str(house.folder / "running"), format="yaml")
        house.note_key("cancelled")
        with get_client(sync_client=True) as prefect:
            prefect.set_flow_run_state(flow_run.id, Cancelling())
        expect(house.finish(flow_run).is_cancelled(), "the flow run is cancelled")
        wait_for("an idle cluster", lambda: not tasks(), seconds=30, alive=house.processes.alive)
    expect(house.attempts()["cancelled"] in (["drawing"], ["reserved"]), "the cancelled attempt is open")
    expect(house.finish(house.begin("cancelled")).is_completed(), "the next run continues it")
    expect(house.attempts()["cancelled"] == ["committed"], "at no second charge")


def kill(house: House) -> None:
    """A flow process that is killed leaves an open attempt; the next run continues it."""
    house.begin("killed")
    with house.client() as client:
        wait_for(
            "work on the cluster",
            lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)),
            seconds=90,
            alive=house.processes.alive,
        )
    for process in house.processes.children("flow-worker"):
        process.kill()
    expect(house.finish(house.begin("killed"), seconds=240).is_completed(), "the next run continues it")
    expect(house.attempts()["killed"] == ["committed"], "at no second charge")
    house.processes.run("verify", f"{BUCKET}/releases/killed")


def refuse(house: House) -> None:
    """A table with a value out of its domain: a clear error without the value, and no charge."""
    state = house.finish(house.begin("refused", **{"data.path": f"{BUCKET}/bad", "data.extra_columns": "refuse"}))
    expect(state.is_failed(), f"the flow run is {state.type}")
    expect("domain" in (state.message or ""), f"unclear: {state.message}")
    expect(set(house.attempts()["refused"]) == {"void"}, "nothing was charged")


def search(house: House) -> dict[str, list[str]]:
    """Where private texts are found: dumps of both databases, logs, listings, manifests, the state of the cluster."""
    import s3fs

    fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    found = {path: str(info["size"]) for path, info in fs.find(BUCKET, detail=True).items()}
    places = {"object listing": json.dumps(found).encode()}
    for path in found:
        if "/releases/" in path and path.endswith(".json"):
            places[path] = fs.cat_file(path)
    for name in ("prefect", "ledger"):
        dump = ["pg_dump", "--inserts", f"{house.postgres}/{name}"]
        places[f"dump of {name}"] = subprocess.run(dump, check=True, capture_output=True).stdout
    with house.client() as client:
        client.dump_cluster_state(str(house.folder / "idle"), format="yaml")
    for path in house.folder.rglob("*"):
        inside = path.relative_to(house.folder).parts[0]
        if path.is_file() and inside not in ("kek", "named.parquet", "bad.parquet", "tls"):
            places[str(path.relative_to(house.folder))] = path.read_bytes()
    expect(b"acs2024" in places["dump of prefect"] and b"committed" in places["dump of ledger"], "the dumps are whole")
    expect("running.yaml" in places and b"read-encode" in places["running.yaml"], "the state of the cluster is whole")
    keys = [path for path in found if path.endswith("key.json")]
    expect(not keys, f"keys are erased at commit: {keys}")
    return {name: leaks for name, text in house.private.items() if (leaks := where(text, places))}


def where(text: str, places: dict[str, bytes]) -> list[str]:
    """Names of the places that hold a text; a number counts where it stands alone."""
    pattern = re.escape(text.encode("latin-1"))
    if text.isdigit():
        pattern = rb"(?<![0-9.])" + pattern + rb"(?![0-9])"
    return [place for place, content in places.items() if re.search(pattern, content)]


def expect(condition: bool, message: str) -> None:
    """Stop with a message unless the condition holds."""
    if not condition:
        raise SystemExit(f"end-to-end run: {message}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the durations here")
    parser.add_argument("--kill", action="store_true", help="kill a flow process too (about 90 s more)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    arguments = parser.parse_args()
    expect(DATA.exists(), f"{DATA.name} is missing: set DPDIST_DATA to the folder that holds it")
    house = House(Path(tempfile.mkdtemp(prefix="dpdist-e2e-")))
    start = time.perf_counter()
    steps: dict[str, Callable[[House], object]] = {
        "servers": lambda house: (install_missing(), house.start()),
        "tables with planted values": House.fill,
        "deployment": House.deploy,
        "release by the command line, verified": plain,
        "the same by deployment": release,
        "cancelled and continued": cancel,
        "refused": refuse,
    }
    if arguments.kill:
        steps["killed and continued"] = kill
    try:
        for name, step in steps.items():
            with house.step(name):
                step(house)
        with house.step("search for private values and keys"):
            leaks = search(house)
        expect(not leaks, f"found {leaks}")
    except BaseException:
        arguments.keep = True
        print(f"logs: {house.folder}", file=sys.stderr)
        raise
    finally:
        house.processes.stop()
        if not arguments.keep:
            shutil.rmtree(house.folder)
    added = house.seconds["the deployment alone"] - house.seconds["the command alone"]
    print(f"the flow adds {added:.1f} s to the command line")
    total = round(time.perf_counter() - start, 1)
    print(f"all: {total} s; searched for {len(house.private)} private texts, found none")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seconds": {**house.seconds, "all": total}}, indent=2))


if __name__ == "__main__":
    main()
