"""The house of the end-to-end run: its servers, its tables, its deployments, and how a run is begun and ended."""

import base64
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from servers import ROOT, Processes, answers, wait_for

from dpdist.ledger.signing import KeyEncryptionKey

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import free_port

DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")) / "acs2024_workers.parquet"
"""ACS 2024, where there is a copy of it; else the run uses a made-up table (`dpdist sample`)."""

MADE_UP = not DATA.exists()
ROWS = 401_873
"""Rows of the made-up table: a number that stands nowhere else."""

SPEC = "deploy/releases/acs2013-paper.yaml" if MADE_UP else "deploy/releases/acs2024-paper.yaml"
BUCKET, PAGES = "s3://census", "s3://pages"
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
            "DPDIST_LOG": "json",
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
        wait_for("Prefect", answers(f"{self.server}/health"), seconds=300, alive=processes.alive)

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
        fs.mkdir(PAGES)
        if MADE_UP:
            self.processes.run("sample", self.folder / "census", "--rows", str(ROWS))
        table = pq.read_table(self.folder / "census" if MADE_UP else DATA)
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
            **({"data.minimum_records": ROWS * 9 // 10, "synthesis.records": 100_000} if MADE_UP else {}),
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
        names = [part for name in ("process", "evaluate", "ledger") for part in ("--name", name)]
        run("--no-prompt", "deploy", *names, "--prefect-file", "deploy/prefect.yaml", module="prefect")
        second = (ROOT / "deploy" / "prefect.yaml").read_text().replace("name: process", "name: second")
        (self.folder / "prefect.yaml").write_text(second)
        file = str(self.folder / "prefect.yaml")
        run("--no-prompt", "deploy", "--name", "second", "--prefect-file", file, module="prefect")
        self.processes.start(
            "flow-worker", "worker", "start", "--pool", "dpdist", "--type", "process", module="prefect",
            changes=self._storage_by_block(),
        )  # fmt: skip

    def _storage_by_block(self) -> dict[str, str | None]:
        """Make the block that holds the store's credentials; what the flow worker finds in its environment instead."""
        from prefect_aws import AwsCredentials

        variables = {name: self.processes.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
        AwsCredentials(
            **{f"aws_{name.lower()}": value for name, value in variables.items()},
            aws_client_parameters={"endpoint_url": self.processes.environment["AWS_ENDPOINT_URL"]},
        ).save("census", _sync=True)
        absent = dict.fromkeys(name for name in self.processes.environment if name.startswith("AWS_"))
        return {**absent, "DPDIST_STORAGE_BLOCK": "aws-credentials/census", "DPDIST_PAGES": PAGES}

    def begin(self, name: str, *, deployment: str = "process", **changes: Any) -> Any:
        """Start a release by a deployment."""
        return self.run(f"release/{deployment}", spec=SPEC, settings=self.settings(name, **changes))

    def run(self, deployment: str, **parameters: Any) -> Any:
        """Start a run of a deployment."""
        from prefect.deployments import run_deployment

        return run_deployment(deployment, parameters=parameters, timeout=0, as_subflow=False)

    def finish(self, flow_run: Any, *, seconds: float = 600) -> Any:
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
