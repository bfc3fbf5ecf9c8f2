"""The chart and the image on a real Kubernetes node, with network policies enforced.

    python tests/e2e/kubernetes.py [--node SCRIPT] [--json FILE] [--only NAME ...] [--no-image] [--keep]

SCRIPT starts and stops the node (`up`, `servers`, `image CHECKOUT`, `env`, `down`); DPDIST_NODE names it by default.
Installs every mode, releases and verifies from outside; probes from inside each kind of pod what it may reach; deletes
each kind of pod in the middle of a release and continues it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml
from servers import ROOT, Processes, answers, wait_for

from dpdist.ledger import Ledger
from dpdist.privacy.gdp import largest_mu_squared, least_epsilon

NAMESPACE = "census"
ROWS = 2_000_000
BUCKETS = ("census", "census-public", "census-confidential")
PREFECT = 4200

# What each kind of pod may reach; all else is denied.
ALLOWED = {
    "scheduler": {"workers", "names"},
    "worker": {"scheduler", "workers", "store", "names"},
    "release": {"scheduler", "store", "ledger", "names"},
    "flow": {"scheduler", "store", "ledger", "prefect", "names"},
    "prefect": {"prefect", "kubernetes", "names"},
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
    """The node, the servers beside it, and what is installed on it."""

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
        return self.run("kubectl", "--namespace", NAMESPACE, *command, check=check, input=input)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        print(f"==> {name}", flush=True)
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 1)
        print(f"    {self.seconds[name]} s", flush=True)

    def begin(self) -> None:
        """Start the node, the servers, and put a made-up table into the store."""
        self.cluster("up")
        self.cluster("servers")
        show = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
        shell = f'eval "$(bash {self.script} env)" && {show}'
        self.environment = json.loads(self.run("bash", "-c", shell).splitlines()[-1])
        self.ip = self.environment["DPDIST_NODE_IP"]
        self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        self.run("kubectl", "wait", "--for=delete", f"namespace/{NAMESPACE}", "--timeout=120s", check=False)
        buckets = (
            "import s3fs, sys; s = s3fs.S3FileSystem(); there = set(s.ls(''));"
            "[s.rm(b, recursive=True) for b in sys.argv[1:] if b in there]; [s.mkdir(b) for b in sys.argv[1:]]"
        )
        self.run(sys.executable, "-c", buckets, *BUCKETS)
        self.put("table", ROWS)
        self.kubectl(
            "apply", "--server-side", "-f", "-", input=self.dpdist("cluster", "secrets", "--namespace", NAMESPACE)
        )
        self.dataset = f"demo-{int(time.time())}"
        self.dpdist("ledger", "create", self.dataset, "--epsilon", "100", "--delta", "1e-6", "--allow", "dp")
        spec = yaml.safe_load((ROOT / "deploy/releases/demo.yaml").read_text())
        spec.pop("ledger", None)
        spec |= {"dataset": self.dataset}
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        self.schema = (ROOT / "deploy/releases" / spec["schema"]).resolve()

    def values(self, name: str, **more: Any) -> dict[str, Any]:
        """Values of the chart for a release of this name; it runs on small requests, as the node is small."""
        here = [{"ipBlock": {"cidr": f"{self.ip}/32"}}]
        settings = {
            "name": name,
            "data": {"path": "s3://census/table", "minimum_records": 1_900_000},
            "output": {"path": f"s3://census-public/{name}"},
            "work": "s3://census-confidential/work",
            "synthesis": {"records": 2_000_000},
        }
        return {
            "image": {"repository": "localhost/dpdist", "tag": "test", "pullPolicy": "Never"},
            "storage": {"endpointUrl": self.environment["AWS_ENDPOINT_URL"], "region": "us-east-1"},
            "release": {"settings": settings},
            "driver": {"cpu": "250m", "memory": "2Gi"},
            "dask": {
                "scheduler": {"cpu": "100m", "memory": "1Gi"},
                "workers": {"replicas": 2, "cpu": "250m", "memory": "2Gi"},
            },
            "networkPolicy": {
                "storage": {"ports": [7480], "to": here},
                "ledger": {"ports": [15432], "to": here},
                "prefect": {"ports": [PREFECT], "to": here},
            },
            **more,
        }

    def install(self, release: str, name: str, **more: Any) -> None:
        """Install or upgrade a release of the chart."""
        self.install_values(release, self.values(name, **more))

    def install_values(self, release: str, given: dict[str, Any]) -> None:
        """Install or upgrade with these values."""
        values = self.folder / f"{release}.yaml"
        values.write_text(yaml.safe_dump(given))
        files = [f"--set-file=release.spec={self.folder / 'spec.yaml'}", f"--set-file=release.schema={self.schema}"]
        chart = ROOT / "helm" / "dpdist"
        self.run("helm", "upgrade", "--install", release, chart, "--namespace", NAMESPACE, "--values", values, *files)

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

        wait_for(f"the end of {job}", ended, seconds=seconds, alive=lambda: None)
        return "Complete" in ended(), self.kubectl("logs", job, "--tail=40", check=False)

    def charges(self, name: str, dataset: str = "") -> list[str]:
        """States of the ledger's attempts of a release."""
        attempts = Ledger.open(self.environment["DPDIST_LEDGER"]).show(dataset or self.dataset).attempts
        return [attempt.state for attempt in attempts if attempt.release == name]

    def released(self, name: str, dataset: str = "") -> None:
        """One charge, and every byte is that of the published model."""
        found = self.charges(name, dataset)
        expect(found == ["committed"], f"{name}: {found} in the ledger")
        folder = "/".join(part for part in (dataset, name) if part)
        said = self.dpdist(
            "verify", f"s3://census-public/{folder}", "--recompute", "--ledger", self.environment["DPDIST_LEDGER"]
        )
        expect("recomputed" in said.lower(), said)

    def targets(self, release: str) -> dict[str, tuple[str, int]]:
        worker = self.pods(release, "worker")[-1]["status"]["podIP"]
        service = json.loads(self.kubectl("get", "service", f"{release}-dpdist-scheduler", "-o", "json"))
        return {
            "scheduler": (service["spec"]["clusterIP"], 8786),
            "workers": (worker, 8788),
            "store": (self.ip, 7480),
            "ledger": (self.ip, 15432),
            "prefect": (self.ip, PREFECT),
            "kubernetes": (
                self.run("kubectl", "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"),
                443,
            ),
            "kubelet": (self.ip, 10250),
            "names": (
                self.run(
                    "kubectl", "get", "service", "kube-dns", "-n", "kube-system", "-o", "jsonpath={.spec.clusterIP}"
                ),
                53,
            ),
        }

    def probe(self, release: str, kind: str, pod: Mapping[str, Any] | None = None) -> None:
        """What a kind of pod reaches: asked in a running pod, or in a new one with the labels and the spec of `pod`."""
        ask = ["python", "-c", PROBE, json.dumps(self.targets(release))]
        if pod is None:
            running = self.pods(release, kind)[-1]["metadata"]["name"]
            answer = self.kubectl("exec", running, "-c", kind, "--", *ask)
        else:
            name = f"probe-{kind}"
            spec = {**pod["spec"], "restartPolicy": "Never"}
            spec["containers"] = [{**spec["containers"][0], "command": ask[:1], "args": ask[1:]}]
            for own in ("nodeName", "tolerations"):
                spec.pop(own, None)
            made = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": pod["metadata"]["labels"]},
                "spec": spec,
            }
            self.kubectl("delete", "pod", name, "--ignore-not-found")
            self.kubectl("create", "-f", "-", input=json.dumps(made))
            self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
            answer = self.kubectl("logs", name)
        self.reached[kind] = json.loads(answer.splitlines()[-1])
        reaches = {name for name, reached in self.reached[kind].items() if reached}
        expect(reaches == ALLOWED[kind], f"{kind} reaches {sorted(reaches)}, and should {sorted(ALLOWED[kind])}")

    def helm_test(self, release: str) -> None:
        """What the chart's own test says."""
        said = self.run("helm", "test", release, "--namespace", NAMESPACE, "--timeout", "4m", "--logs", check=False)
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

        wait_for(f"a job of {release}", new, seconds=seconds, alive=lambda: None)
        known.append(new()[0])
        return known[-1]

    def put(self, name: str, rows: int) -> None:
        """Write a made-up table into the bucket of the tables."""
        self.dpdist("sample", self.folder / name, "--rows", str(rows))
        put = "import s3fs, sys; s3fs.S3FileSystem().put(sys.argv[1] + '/', sys.argv[2], recursive=True)"
        self.run(sys.executable, "-c", put, self.folder / name, f"census/{name}/")

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
        return {"apiUrl": f"http://{self.ip}:{PREFECT}/api", "pages": "s3://census-confidential/pages"}

    def deploy_flows(self, name: str) -> None:
        """Install mode prefect for a release of this name, and its deployment."""
        self.install("flows", name, mode="prefect", prefect=self.flows)
        self.kubectl("rollout", "status", "deployment/flows-dpdist-prefect", "--timeout=180s")
        inside = ("exec", "deployment/flows-dpdist-prefect", "-c", "prefect", "--", "prefect")
        self.kubectl(*inside, "--no-prompt", "deploy", "--all", "--prefect-file", "/etc/dpdist/prefect/prefect.yaml")

    def run_flow(self, flow: str = "release", **parameters: str) -> dict[str, Any]:
        """Run a deployment; the pod of its flow."""
        known = {pod["metadata"]["name"] for pod in self.pods("flows", "release")}
        inside = ("exec", "deployment/flows-dpdist-prefect", "-c", "prefect", "--", "prefect")
        given = [part for name, value in parameters.items() for part in ("--param", f"{name}={value}")]
        self.kubectl(*inside, "deployment", "run", f"{flow}/{NAMESPACE}-flows-dpdist", *given)

        def new() -> list[dict[str, Any]]:
            return [pod for pod in self.pods("flows", "release") if pod["metadata"]["name"] not in known]

        wait_for("the flow's pod", new, seconds=240, alive=self.prefect.alive)
        return new()[0]

    def monthly(self) -> str:
        """A data set with a contract that admits three of the releases of `schedule` in a month."""
        dataset = f"monthly-{int(time.time())}"
        self.put("monthly", ROWS - int(time.time()) % 100_000)  # a table of its own, which no other data set charged
        draft = ("contract", "draft", self.schema, "--data", "s3://census/monthly", "--minimum", "1800000")
        contract = yaml.safe_load(self.dpdist(*draft, "--epsilon", "100", "--delta", "1e-6"))
        each = largest_mu_squared(epsilon=Fraction(1, 2), delta=Fraction(1, 10**9))
        three, four = (least_epsilon(mu_squared=number * each, delta=Fraction(1, 10**6)) for number in (3, 4))
        contract["period"] = {"per": "year", "epsilon": round((three + four) / 2, 3)}
        (self.folder / "contract.yaml").write_text(yaml.safe_dump(contract))
        self.dpdist("ledger", "create", dataset, "--contract", self.folder / "contract.yaml")
        self.dpdist("contract", "check", "--dataset", dataset)
        return dataset


def job(node: Node) -> None:
    """Mode job: install to verified release; what its pods reach."""
    with node.timed("job: install to verified release"):
        node.install("one", "job")
        done, said = node.finish(node.newest_job("one"))
        expect(done, said)
        node.released("job")
    with node.timed("job: what pods reach"):
        node.probe("one", "scheduler")
        node.probe("one", "worker")
        template = json.loads(node.kubectl("get", node.newest_job("one"), "-o", "json"))["spec"]["template"]
        node.probe("one", "release", template)
    with node.timed("job: helm test"):
        node.helm_test("one")


def deleted(node: Node) -> None:
    """A pod of each kind is deleted in the middle of a release, which then is continued."""
    for kind, after in [
        ("worker", 1),
        ("scheduler", 0),
        ("scheduler", 1),
        ("scheduler", 2),
        ("scheduler", 4),
        ("release", 1),
    ]:
        with node.timed(f"job: {kind} deleted {after} s after the charge"):
            name = f"deleted-{kind}-{after}"
            node.install("one", name)
            begun = node.newest_job("one")
            wait_for("the charge", lambda name=name: node.charges(name), seconds=180, alive=lambda: None)
            time.sleep(after)
            pod = next(pod for pod in node.pods("one", kind) if pod["status"]["phase"] == "Running")["metadata"]["name"]
            node.kubectl("delete", "pod", pod, "--wait=false", "--grace-period=1")
            done, said = node.finish(begun)
            words = said.strip().splitlines()[-1] if kind != "release" else "its pod is gone"
            print("    " + ("completed" if done else f"failed: {words}"))
            if not done:
                expect("internal error" not in said and "Traceback" not in said, f"{name}: {said}")
                node.install("one", name, job={"run": 2})
                done, said = node.finish(node.newest_job("one"))
                expect(done, said)
            node.released(name)


def cron(node: Node) -> None:
    """Mode cronJob: one release, one charge, and then nothing to do."""
    with node.timed("cronJob: twice"):
        node.install("nightly", "cron", mode="cronJob", cronJob={"schedule": "0 3 1 1 *"})
        for run in ("first", "second"):
            node.kubectl("create", "job", "--from=cronjob/nightly-dpdist", f"nightly-{run}")
            done, said = node.finish(f"job/nightly-{run}")
            expect(done, said)
        expect("Nothing to do" in said, said)
        node.released("cron")
    node.run("helm", "uninstall", "nightly", "--namespace", NAMESPACE)


QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: tight}
spec: {hard: {limits.memory: 4Gi}}
"""


def limits(node: Node) -> None:
    """A quota without room for workers; an upgrade, and back."""
    with node.timed("limits: a quota leaves no room for workers"):
        node.run("helm", "uninstall", "one", "--namespace", NAMESPACE, "--wait", check=False)
        node.kubectl("apply", "-f", "-", input=QUOTA)
        dask = node.values("")["dask"]
        large = {**dask["workers"], "memory": "8Gi"}  # fits the node, and never the quota
        node.install("tight", "quota", dask={**dask, "timeout": 20, "workers": large})
        done, said = node.finish(node.jobs("tight")[-1])
        print("    " + said.strip().splitlines()[-1])
        expect(not done and "worker" in said and "Traceback" not in said, said)
        node.kubectl("delete", "resourcequota", "tight")
        node.install("tight", "quota", job={"run": 2})
        done, said = node.finish(node.newest_job("tight"))
        expect(done, said)
        node.released("quota")
    with node.timed("limits: upgrade and back"):
        node.install("tight", "before")
        done, said = node.finish(node.newest_job("tight"))
        expect(done, said)
        node.install("tight", "upgraded")
        done, said = node.finish(node.newest_job("tight"))
        expect(done, said)
        node.released("upgraded")
        known = node.jobs("tight")
        node.run("helm", "rollback", "tight", "--namespace", NAMESPACE)
        back = [job for job in node.jobs("tight") if job not in known]
        done, said = node.finish(back[0]) if back else (True, "Nothing to do")
        expect(done and "Nothing to do" in said, said)
        node.released("before")
    node.run("helm", "uninstall", "tight", "--namespace", NAMESPACE)


def schedule(node: Node) -> None:
    """Three months, a minute each, of a CronJob: one doubled, one missed, one whose pod is deleted; then the cap."""
    dataset, known = node.monthly(), node.jobs("monthly")
    every_minute = {"mode": "cronJob", "cronJob": {"schedule": "* * * * *"}}

    def month(day: str) -> str:
        """Let the clock of the schedule stand at a day; the next job."""
        name = "acs-{date:%Y-%m}"
        changes = {
            "name": name,
            "dataset": dataset,
            "date": day,
            "output": {"path": f"s3://census-public/{dataset}/{name}"},
        }
        values = node.values("", **every_minute)
        changes["data"] = {"path": "s3://census/monthly", "minimum_records": 1_800_000}
        values["release"]["settings"] |= {**changes, "privacy": {"epsilon": 0.5, "delta": 1e-9}}
        node.install_values("monthly", values)
        return node.next_job("monthly", known, day)

    with node.timed("schedule: three months in some minutes"):
        done, said = node.finish(month("2026-01-31"))
        expect(done, said)
        done, said = node.finish(node.next_job("monthly", known, "2026-01-31"))
        expect(done and "Nothing to do" in said, f"the doubled run: {said}")
        begun = month("2026-03-31")  # February's run was missed
        wait_for("the charge", lambda: node.charges("acs-2026-03", dataset), seconds=180, alive=lambda: None)
        pod = json.loads(node.kubectl("get", "pods", "--selector", f"job-name={begun.split('/')[1]}", "-o", "json"))
        node.kubectl("delete", "pod", pod["items"][0]["metadata"]["name"], "--wait=false", "--grace-period=1")
        node.finish(begun)
        done, said = node.finish(node.next_job("monthly", known, "2026-03-31"))  # the next minute continues it
        expect(done, said)
        done, said = node.finish(month("2026-04-30"))
        expect(done, said)
        done, said = node.finish(month("2026-05-31"))
        expect(not done and "lets a year spend" in said, f"beyond the period's cap: {said}")
    for name in ("acs-2026-01", "acs-2026-03", "acs-2026-04"):
        node.released(name, dataset)
    expect(not node.charges("acs-2026-02", dataset) and not node.charges("acs-2026-05", dataset), "a fourth charge")
    node.run("helm", "uninstall", "monthly", "--namespace", NAMESPACE)


def prefect(node: Node) -> None:
    """Mode prefect: a flow run by deployment, and what the worker and a flow's pod reach."""
    server = node.prefect
    node.serve_prefect()
    with node.timed("prefect: install to verified release"):
        node.deploy_flows("prefect")
        pod = node.run_flow()
        done, said = node.finish("job/" + pod["metadata"]["labels"]["job-name"])
        expect(done, said)
        node.released("prefect")
    with node.timed("prefect: the flows of pages"):
        pages = {"ledger": {}, "evaluate": {"release": "s3://census-public/prefect", "output": "prefect"}}
        for name, given in pages.items():
            page = node.run_flow(name, **given)
            done, said = node.finish("job/" + page["metadata"]["labels"]["job-name"])
            expect(done, said)
    with node.timed("prefect: helm test"):
        node.helm_test("flows")
    with node.timed("prefect: what pods reach"):
        node.probe("flows", "prefect")
        pod["metadata"]["labels"] = {
            name: text
            for name, text in pod["metadata"]["labels"].items()
            if "job-name" not in name and "controller" not in name
        }
        node.probe("flows", "flow", pod)
    for kind in ("release", "prefect", "scheduler", "worker", "server"):
        with node.timed(f"prefect: {kind} deleted in the middle"):
            name = f"flow-{kind}"
            node.deploy_flows(name)
            flow = node.run_flow()
            wait_for("the charge", lambda name=name: node.charges(name), seconds=240, alive=lambda: None)
            if kind == "server":
                server.stop()
                time.sleep(5)
                node.serve_prefect()
            else:
                pods = [pod for pod in node.pods("flows", kind) if pod["status"]["phase"] == "Running"]
                gone = flow if kind == "release" else pods[-1]
                node.kubectl("delete", "pod", gone["metadata"]["name"], "--wait=false", "--grace-period=1")
            done, said = node.finish("job/" + flow["metadata"]["labels"]["job-name"])
            expect("internal error" not in said and "Traceback" not in said, f"{name}: {said}")
            print(f"    the run {'completed' if done else 'failed'}; released: {node.charges(name)}")
            if node.charges(name) != ["committed"]:
                again = node.run_flow()
                done, said = node.finish("job/" + again["metadata"]["labels"]["job-name"])
                expect(done, said)
            node.released(name)
    node.run("helm", "uninstall", "flows", "--namespace", NAMESPACE)


CASES: dict[str, Callable[[Node], None]] = {
    "job": job,
    "deleted": deleted,
    "cron": cron,
    "limits": limits,
    "schedule": schedule,
    "prefect": prefect,
}


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("DPDIST_NODE", ROOT.parent / "shared" / "servers" / "kubernetes.sh")
    parser.add_argument("--node", type=Path, default=default, help="script of the node (DPDIST_NODE)")
    parser.add_argument("--json", type=Path, help="write times and connections")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="these cases")
    parser.add_argument("--no-image", action="store_true", help="take the image that the node has")
    parser.add_argument("--keep", action="store_true", help="leave the node running")
    given = parser.parse_args()
    if not given.node.exists():
        raise SystemExit(f"no script of a node at {given.node}: name one by DPDIST_NODE")
    with tempfile.TemporaryDirectory() as folder:
        node = Node(given.node.resolve(), Path(folder))
        try:
            with node.timed("node, servers and table"):
                node.begin()
            if not given.no_image:
                with node.timed("image"):
                    node.cluster("image", ROOT)
            for name in given.only:
                CASES[name](node)
        finally:
            node.prefect.stop()
            if not given.keep:
                node.cluster("down")
    for kind, reached in node.reached.items():
        print(f"{kind:10} " + ", ".join(f"{name} {'yes' if yes else 'no'}" for name, yes in reached.items()))
    if given.json:
        given.json.write_text(json.dumps({"seconds": node.seconds, "reached": node.reached}, indent=1) + "\n")


if __name__ == "__main__":
    main()
