"""A Kubernetes node of the end-to-end run, and what is asked of it, namespace by namespace."""

import base64
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Self
from urllib.request import ProxyHandler, Request, build_opener

import yaml
from servers import ROOT, Processes, answers, wait_for

from dpdist.ledger import Books
from dpdist.privacy.gdp import largest_mu_squared, least_epsilon

ROWS = {
    "table": 300_000,
    "large": 1_000_000,
}  # of the large one a release takes long enough to be stopped in the middle
BUCKETS = ("census", "census-public", "census-confidential")
PREFECT = 4200

# What each kind of pod may reach; all else is denied.
ALLOWED = {
    "scheduler": {"workers", "names"},
    "worker": {"scheduler", "workers", "store", "names"},
    "release": {"scheduler", "store", "ledger", "names"},
    "flow": {"scheduler", "store", "ledger", "prefect", "names"},
    "prefect": {"prefect", "kubernetes", "names"},
    "client": {"scheduler", "workers", "store", "ledger", "names"},
}
PROBE = """
import json, socket, sys, time
time.sleep(5)  # policies follow a new pod with some delay
found = {}
for name, (host, port) in json.loads(sys.argv[1]).items():
    try:
        socket.create_connection((host, port), timeout=2).close()
        found[name] = True
    except OSError:
        found[name] = False
print(json.dumps(found))
"""


def expect(true: object, words: str) -> None:
    """Raise AssertionError with the words where something is not true."""
    if not true:
        raise AssertionError(words)


class Node:
    """The node, the servers beside it, and what is installed in one of its namespaces."""

    namespace = ""
    dataset = ""

    def __init__(self, script: Path, folder: Path) -> None:
        self.script, self.folder = script, folder
        self.environment = dict(os.environ)
        self.seconds: dict[str, float] = {}
        self.reached: dict[str, dict[str, bool]] = {}
        self.prefect = Processes(folder)

    def cluster(self, *command: str | Path) -> str:
        """Run a command of the node's script."""
        return self.run("bash", self.script, *command)

    def run(self, *command: str | Path, check: bool = True, input: str | None = None) -> str:
        """Run a program to its end and return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, cwd=ROOT, input=input)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
        return done.stdout + (done.stderr if not check else "")

    def dpdist(self, *command: str | Path, check: bool = True) -> str:
        return self.run(sys.executable, "-m", "dpdist", *command, check=check)

    def kubectl(self, *command: str | Path, check: bool = True, input: str | None = None) -> str:
        return self.run("kubectl", "--namespace", self.namespace, *command, check=check, input=input)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        print(f"==> {name}", flush=True)
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 1)
        print(f"    {name}: {self.seconds[name]} s", flush=True)

    def begin(self) -> None:
        """Start the node and the servers, with empty buckets."""
        self.cluster("up")
        self.cluster("servers")
        show = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
        shell = f'eval "$(bash {self.script} env)" && {show}'
        self.environment = json.loads(self.run("bash", "-c", shell).splitlines()[-1])
        self.ip = self.environment["DPDIST_NODE_IP"]
        buckets = (
            "import s3fs, sys; s = s3fs.S3FileSystem(); there = set(s.ls(''));"
            "[s.rm(b, recursive=True) for b in sys.argv[1:] if b in there]; [s.mkdir(b) for b in sys.argv[1:]]"
        )
        self.run(sys.executable, "-c", buckets, *BUCKETS)

    def put_tables(self) -> None:
        """Put the made-up tables into the store."""
        for name, rows in ROWS.items():
            self.put(name, rows)

    def build(self) -> None:
        """Build the image and load it; a first pod unpacks it."""
        self.cluster("image", ROOT)
        pod = ("run", "first", "--image=localhost/dpdist:test", "--image-pull-policy=Never", "--restart=Never")
        self.run("kubectl", *pod, "--command", "--", "dpdist", "release", "--help")
        self.run("kubectl", "wait", "pod/first", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        self.run("kubectl", "delete", "pod", "first")

    def at(self, namespace: str) -> Self:
        """The same node seen from a namespace, which is made anew, with its secrets and a data set of its own."""
        there = copy.copy(self)
        there.namespace = namespace
        there.dataset = f"{namespace}-{int(time.time())}"
        there.folder = self.folder / namespace
        there.folder.mkdir()
        self.run("kubectl", "delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s")
        secrets = self.dpdist("cluster", "secrets", "--namespace", namespace)
        self.run("kubectl", "apply", "--server-side", "-f", "-", input=secrets)
        self.dpdist("ledger", "create", there.dataset, "--epsilon", "100", "--delta", "1e-4", "--allow", "dp")
        spec = yaml.safe_load((ROOT / "deploy/releases/demo.yaml").read_text())
        there.schema = (ROOT / "deploy/releases" / spec["schema"]).resolve()
        spec.pop("ledger", None)
        (there.folder / "spec.yaml").write_text(yaml.safe_dump(spec | {"dataset": there.dataset}))
        return there

    def secret(self, name: str, key: str) -> str:
        """What a secret holds."""
        text = self.kubectl("get", "secret", name, "-o", "json")
        return base64.b64decode(json.loads(text)["data"][key]).decode()

    def values(self, name: str, table: str = "table", **more: Any) -> dict[str, Any]:
        """Values of the chart for a release of this name; it runs on small requests, as the node is small."""
        here = [{"ipBlock": {"cidr": f"{self.ip}/32"}}]
        settings = {
            "name": name,
            "data": {"path": f"s3://census/{table}", "minimum_records": ROWS[table] * 9 // 10},
            "output": {"path": f"s3://census-public/{self.dataset}/{name}"},
            "work": f"s3://census-confidential/{self.namespace}",
            "synthesis": {"records": ROWS[table]},
            "model": {"rounds": 2, "cells": 20_000},  # the fit is not what is tried here
        }
        return {
            "image": {"repository": "localhost/dpdist", "tag": "test", "pullPolicy": "Never"},
            "storage": {"endpointUrl": self.environment["AWS_ENDPOINT_URL"], "region": "us-east-1"},
            "release": {"settings": settings},
            "driver": {"cpu": "100m", "memory": "1536Mi"},
            "dask": {
                "scheduler": {"cpu": "50m", "memory": "768Mi"},
                "workers": {"replicas": 2, "cpu": "100m", "memory": "1280Mi"},
            },
            "networkPolicy": {
                "storage": {"ports": [7480], "to": here},
                "ledger": {"ports": [15432], "to": here},
                "prefect": {"ports": [PREFECT], "to": here},
            },
            **more,
        }

    def install(self, release: str, name: str, table: str = "table", **more: Any) -> None:
        """Install or upgrade a release of the chart."""
        self.install_values(release, self.values(name, table, **more))

    def install_values(self, release: str, given: dict[str, Any], **files: Path) -> None:
        """Install or upgrade with these values, and with spec and schema unless they are workers only."""
        values = self.folder / f"{release}.yaml"
        values.write_text(yaml.safe_dump(given))
        texts = {"spec": self.folder / "spec.yaml", "schema": self.schema} | files
        texts = {} if given.get("mode") == "workers" else texts
        flags = [f"--set-file=release.{key}={path}" for key, path in texts.items()]
        self.helm("upgrade", "--install", release, ROOT / "helm" / "dpdist", "--values", values, *flags)

    def helm(self, *command: str | Path, check: bool = True) -> str:
        """Run Helm in the namespace."""
        return self.run("helm", *command, "--namespace", self.namespace, check=check)

    def pods(self, release: str, component: str) -> list[dict[str, Any]]:
        """The pods of a component, the newest last."""
        select = f"app.kubernetes.io/instance={release},dpdist/component={component}"
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "--selector", select, "-o", "json"))[
            "items"
        ]
        return sorted(items, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def newest_job(self, release: str) -> str:
        select = f"app.kubernetes.io/instance={release}"
        order = "--sort-by=.metadata.creationTimestamp"
        return self.kubectl("get", "jobs", "--selector", select, order, "-o", "name").split()[-1]

    def finish(self, job: str, seconds: float = 300) -> tuple[bool, str]:
        """Wait for a job; whether it completed, and the end of its log."""

        def ended() -> str:
            found = self.kubectl("get", job, "-o", "jsonpath={.status.conditions[*].type}")
            return found if "Complete" in found or "Failed" in found else ""

        wait_for(f"the end of {job}", ended, seconds=seconds, alive=lambda: None, every=1)
        return "Complete" in ended(), self.kubectl("logs", job, "--tail=40", check=False)

    def charged(self, name: str, dataset: str = "", job: str = "") -> None:
        """Wait until a release has its charge; where its job fails before, the error has the end of its log."""

        def running() -> None:
            found = self.kubectl("get", job, "-o", "jsonpath={.status.conditions[*].type}") if job else ""
            if "Failed" in found and not self.charges(name, dataset):
                raise AssertionError(f"{name}: no charge\n" + self.kubectl("logs", job, "--tail=40", check=False))

        wait_for("the charge", lambda: self.charges(name, dataset), seconds=240, alive=running, every=0.5)

    def charges(self, name: str, dataset: str = "") -> list[str]:
        """States of the ledger's attempts of a release."""
        attempts = Books.open(self.environment["DPDIST_LEDGER"]).show(dataset or self.dataset).attempts
        return [attempt.state for attempt in attempts if attempt.release == name]

    def released(self, name: str, dataset: str = "") -> None:
        """One charge, and every byte is that of the published model."""
        found = self.charges(name, dataset)
        expect(found == ["committed"], f"{name}: {found} in the ledger")
        folder = f"{dataset or self.dataset}/{name}"
        said = self.dpdist(
            "verify", f"s3://census-public/{folder}", "--recompute", "--ledger", self.environment["DPDIST_LEDGER"]
        )
        expect("recomputed" in said.lower(), said)

    def targets(self, release: str) -> dict[str, tuple[str, int]]:
        """What may be reached or not from a pod of a release of the chart, by name."""
        worker = self.pods(release, "worker")[-1]["status"]["podIP"]
        service = json.loads(self.kubectl("get", "service", f"{release}-dpdist-scheduler", "-o", "json"))
        address = "jsonpath={.spec.clusterIP}"
        names = self.run("kubectl", "get", "service", "kube-dns", "--namespace", "kube-system", "-o", address)
        return {
            "scheduler": (service["spec"]["clusterIP"], 8786),
            "workers": (worker, 8788),
            "store": (self.ip, 7480),
            "ledger": (self.ip, 15432),
            "prefect": (self.ip, PREFECT),
            "kubernetes": (self.run("kubectl", "get", "service", "kubernetes", "-o", address), 443),
            "kubelet": (self.ip, 10250),
            "names": (names, 53),
        }

    def probe(self, release: str, kind: str, pod: Mapping[str, Any] | None = None) -> None:
        """What a kind of pod reaches: asked in a running pod, or in a new one with the labels and the spec of `pod`."""
        asked = self.targets(release)
        if pod is None:
            self.reaches(release, kind, asked)
            return
        ask = ["python", "-c", PROBE, json.dumps(asked)]
        name = f"probe-{kind}"
        spec = {**pod["spec"], "restartPolicy": "Never"}
        spec["containers"] = [{**spec["containers"][0], "command": ask[:1], "args": ask[1:]}]
        for own in ("nodeName", "tolerations"):
            spec.pop(own, None)
        metadata = {"name": name, "labels": pod["metadata"]["labels"]}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.kubectl("delete", "pod", name, "--ignore-not-found")
        self.kubectl("create", "-f", "-", input=json.dumps(made))
        self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        self.reached[kind] = json.loads(self.kubectl("logs", name).splitlines()[-1])
        self.as_allowed(kind)

    def reaches(self, release: str, kind: str, asked: Mapping[str, tuple[str, int]], role: str = "") -> None:
        """Ask in the newest running pod of a kind what it reaches; a role of its own has other rights."""
        pod = self.pods(release, kind)[-1]["metadata"]["name"]
        answer = self.kubectl("exec", pod, "-c", kind, "--", "python", "-c", PROBE, json.dumps(asked))
        self.reached[role or kind] = json.loads(answer.splitlines()[-1])
        self.as_allowed(role or kind)

    def as_allowed(self, role: str) -> None:
        """Raise AssertionError unless a kind of pod reaches what it may, and nothing else."""
        reaches = {name for name, reached in self.reached[role].items() if reached}
        expect(reaches == ALLOWED[role], f"{role} reaches {sorted(reaches)}, and should {sorted(ALLOWED[role])}")

    def helm_test(self, release: str) -> None:
        """What the chart's own test says."""
        said = self.helm("test", release, "--timeout", "4m", "--logs", check=False)
        expect("Phase:          Failed" not in said and "WRONG" not in said and "Succeeded" in said, said)

    def jobs(self, release: str) -> list[str]:
        """All jobs of a release, the newest last."""
        select = f"app.kubernetes.io/instance={release}"
        order = "--sort-by=.metadata.creationTimestamp"
        return self.kubectl("get", "jobs", "--selector", select, order, "-o", "name").split()

    def next_job(self, release: str, known: list[str], text: str, seconds: float = 200) -> str:
        """The first job of a release that is not among those known, and has a text in its arguments."""

        def new() -> list[str]:
            jobs = [job for job in self.jobs(release) if job not in known]
            return [job for job in jobs if text in self.kubectl("get", job, "-o", "json")]

        wait_for(f"a job of {release}", new, seconds=seconds, alive=lambda: None, every=1)
        known.append(new()[0])
        return known[-1]

    def put(self, name: str, rows: int) -> None:
        """Write a made-up table into the bucket of the tables."""
        self.dpdist("sample", self.folder / name, "--rows", str(rows))
        self.upload(f"{self.folder / name}/", f"census/{name}/")

    def upload(self, path: str | Path, address: str) -> None:
        """Copy a file, or a folder that ends in a slash, into a bucket."""
        put = "import s3fs, sys; s3fs.S3FileSystem().put(sys.argv[1], sys.argv[2], recursive=True)"
        self.run(sys.executable, "-c", put, path, address)

    def serve_prefect(self) -> None:
        """Start the Prefect server, beside the node."""
        server = self.prefect
        server.environment |= {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "NO_PROXY": self.environment.get("NO_PROXY", self.ip),
            "no_proxy": self.environment.get("NO_PROXY", self.ip),
        }
        server.start("server", "server", "start", "--host", self.ip, "--port", str(PREFECT), module="prefect")
        address = f"http://{self.ip}:{PREFECT}/api"
        wait_for("Prefect", answers(f"{address}/health"), seconds=180, alive=server.alive)

    @property
    def flows(self) -> dict[str, Any]:
        """Values of mode prefect."""
        return {
            "apiUrl": f"http://{self.ip}:{PREFECT}/api",
            "pages": f"s3://census-confidential/{self.namespace}/pages",
        }

    def deploy_flows(self, name: str) -> None:
        """Install mode prefect for a release of this name, and its deployment."""
        large = {"cpu": "100m", "memory": "3Gi"}  # a page holds the records of both tables
        self.install("flows", name, mode="prefect", prefect=self.flows, driver=large)
        self.kubectl("set", "env", "deployment/flows-dpdist-prefect", "PREFECT_WORKER_QUERY_SECONDS=2")
        self.kubectl("rollout", "status", "deployment/flows-dpdist-prefect", "--timeout=180s")
        inside = ("exec", "deployment/flows-dpdist-prefect", "-c", "prefect", "--", "prefect")
        self.kubectl(*inside, "--no-prompt", "deploy", "--all", "--prefect-file", "/etc/dpdist/prefect/prefect.yaml")

    def order_flow(self, flow: str = "release", **parameters: str) -> None:
        """Order a run of a deployment."""
        inside = ("exec", "deployment/flows-dpdist-prefect", "-c", "prefect", "--", "prefect")
        given = [part for name, value in parameters.items() for part in ("--param", f"{name}={value}")]
        self.kubectl(*inside, "deployment", "run", f"{flow}/{self.namespace}-flows-dpdist", *given)

    def run_flow(self, flow: str = "release", **parameters: str) -> dict[str, Any]:
        """Run a deployment; the pod of its flow."""
        known = {pod["metadata"]["name"] for pod in self.pods("flows", "release")}
        self.order_flow(flow, **parameters)

        def new() -> list[dict[str, Any]]:
            return [pod for pod in self.pods("flows", "release") if pod["metadata"]["name"] not in known]

        wait_for("the flow's pod", new, seconds=240, alive=self.prefect.alive, every=1)
        return new()[0]

    def last_state(self, flow: str) -> str:
        """The state of the last run of a flow; the Job of one that failed is complete, too."""
        wanted = {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 1}
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.flows['apiUrl']}/flow_runs/filter", json.dumps(wanted).encode(), headers)
        with build_opener(ProxyHandler({})).open(request, timeout=20) as answer:
            return str(json.load(answer)[0]["state_type"])

    def monthly(self) -> str:
        """A data set with a contract that admits three of the releases of `schedule` in a month."""
        dataset = f"monthly-{int(time.time())}"
        rows = ROWS["large"]
        self.put("monthly", rows + int(time.time()) % 100_000)  # a table of its own, which no other data set charged
        draft = ("contract", "draft", self.schema, "--data", "s3://census/monthly", "--minimum", str(rows))
        contract = yaml.safe_load(self.dpdist(*draft, "--epsilon", "100", "--delta", "1e-6"))
        each = largest_mu_squared(epsilon=Fraction(1, 2), delta=Fraction(1, 10**9))
        three, four = (least_epsilon(mu_squared=number * each, delta=Fraction(1, 10**6)) for number in (3, 4))
        contract["period"] = {"per": "year", "epsilon": round((three + four) / 2, 3)}
        (self.folder / "contract.yaml").write_text(yaml.safe_dump(contract))
        self.dpdist("ledger", "create", dataset, "--contract", self.folder / "contract.yaml")
        self.dpdist("contract", "check", "--dataset", dataset)
        return dataset
