"""The rendered commands are the ones that work: they run as local processes, and the release completes and verifies."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forkserver
import pyarrow.parquet as pq
import pytest
import yaml
from buckets import s3_server
from charts import Rendered, need_tools, render
from pods import Pods
from releases import project, table

from dpdist.ledger import Books
from dpdist.publish.verify import verify

ENDPOINT = {"AWS_ACCESS_KEY_ID": "planted-id", "AWS_SECRET_ACCESS_KEY": "planted-key"}


class House:
    """A bucket with a table, a ledger with a budget, and the secrets that `dpdist cluster secrets` makes."""

    def __init__(self, folder: Path, endpoint: str, ledger: str) -> None:
        self.folder, self.endpoint, self.ledger = folder, endpoint, ledger
        self.environment = {**os.environ, **ENDPOINT, "AWS_ENDPOINT_URL": endpoint, "DPDIST_LEDGER": ledger}
        made = forkserver.run("-m", "dpdist", "cluster", "secrets", "--namespace", "dpdist", env=self.environment)
        self.secrets = list(yaml.safe_load_all(made.stdout))
        opened = Books.open(ledger)
        opened.create_dataset("people", epsilon="50", delta="1e-5", guarantees=("dp", "pd-per-record"))
        opened.close()
        spec = project(folder, synthesis__omega="all").model_dump(mode="json", by_alias=True)
        del spec["ledger"], spec["cluster"]
        self.schema = spec.pop("schema")
        self.spec = {**spec, "schema": "schemas/people.yaml"}

    def values(self, **changes: Any) -> dict[str, Any]:
        """What a user would give to Helm."""
        port = int(self.endpoint.rpartition(":")[2])
        return {
            "image": {"repository": "registry.example/dpdist"},
            "storage": {"endpointUrl": self.endpoint.replace("127.0.0.1", "localhost")},
            "networkPolicy": {"storage": {"ports": [port]}},
            "release": {
                "spec": yaml.safe_dump(self.spec),
                "schema": yaml.safe_dump(self.schema),
                "settings": {
                    "data": {"path": "s3://census/people.parquet"},
                    "work": "s3://census/work",
                    "output": {"path": "s3://census/release"},
                    "cluster": {"partitions": 4},
                },
            },
            "dask": {"workers": {"replicas": 2, "memory": "1Gi"}, "timeout": 60},
            **changes,
        }

    def states(self) -> list[str]:
        opened = Books.open(self.ledger, create=False)
        states = [attempt.state for attempt in opened.show("people").attempts]
        opened.close()
        return states


@pytest.fixture
def house(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    need_tools()
    import boto3

    with s3_server() as endpoint:
        for name, value in {**ENDPOINT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        store = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        store.create_bucket(Bucket="census")
        content = io.BytesIO()
        pq.write_table(table(30_000), content, row_group_size=7_000)
        store.put_object(Bucket="census", Key="people.parquet", Body=content.getvalue())
        yield House(tmp_path, endpoint, postgres_url)


@pytest.fixture
def pods(house: House, tmp_path: Path) -> Iterator[Any]:
    running: list[Pods] = []

    def start(rendered: Rendered) -> Pods:
        made = Pods(rendered.manifests + house.secrets, tmp_path)
        running.append(made)
        made.start("acs-dpdist-scheduler")
        made.start("acs-dpdist-workers")
        return made

    yield start
    for made in running:
        made.stop()


def test_a_cron_job_run_twice_is_one_release_and_one_charge(house: House, pods: Any) -> None:
    """The scheduler, two workers and the Job, as rendered; the same CronJob by name a second time."""
    rendered = render(house.values(mode="cronJob"))
    cluster = pods(rendered)
    cron = rendered.one("CronJob", "acs-dpdist")
    code, log = cluster.run(cron)
    assert code == 0, log
    report = verify("s3://census/release", None, storage_options={"endpoint_url": house.endpoint})
    assert report.private
    assert report.records == 2_500
    assert house.states() == ["committed"]
    assert "Nothing to do" not in log

    code, log = cluster.run(cron)
    assert code == 0, log
    assert "Nothing to do: it was published already" in log
    assert house.states() == ["committed"]

    logs = "".join(path.read_text() for path in house.folder.glob("*.log"))
    assert "planted" not in logs
    assert house.ledger not in logs
    assert "Traceback" not in logs
