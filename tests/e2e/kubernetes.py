"""The chart and the image on a real Kubernetes node, with network policies enforced.

    python tests/e2e/kubernetes.py [--node SCRIPT] [--json FILE] [--only NAME ...] [--no-image] [--keep]

SCRIPT starts and stops the node (`up`, `servers`, `image CHECKOUT`, `env`, `down`); DPDIST_NODE names it by default.
Installs every mode, releases and verifies from outside; probes from inside each kind of pod what it may reach; deletes
each kind of pod in the middle of a release and continues it. After the first, cases run side by side, each in a
namespace of its own.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import scarcity
import sites
import trust
from node import ROWS, Node, expect
from servers import ROOT


def job(node: Node) -> None:
    """Mode job: install to verified release."""
    with node.timed("job: install to verified release"):
        node.install("one", "job")
        done, said = node.finish(node.newest_job("one"))
        expect(done, said)
        node.released("job")


def reached(node: Node) -> None:
    """What the pods of mode job reach."""
    with node.timed("job: what pods reach"):
        node.probe("one", "scheduler")
        node.probe("one", "worker")
        template = json.loads(node.kubectl("get", node.newest_job("one"), "-o", "json"))["spec"]["template"]
        node.probe("one", "release", template)
    with node.timed("job: helm test"):
        node.helm_test("one")


def deleted(node: Node) -> None:
    """A pod of each kind is deleted in the middle of a release, which then is continued."""
    for kind, after in [("worker", 1), ("scheduler", 0), ("scheduler", 2), ("release", 1)]:
        with node.timed(f"job: {kind} deleted {after} s after the charge"):
            name = f"deleted-{kind}-{after}"
            node.install("one", name, "large")
            begun = node.newest_job("one")
            node.charged(name, job=begun)
            time.sleep(after)
            pod = next(pod for pod in node.pods("one", kind) if pod["status"]["phase"] == "Running")["metadata"]["name"]
            node.kubectl("delete", "pod", pod, "--wait=false", "--grace-period=1")
            done, said = node.finish(begun)
            words = said.strip().splitlines()[-1] if kind != "release" else "its pod is gone"
            print("    " + ("completed" if done else f"failed: {words}"))
            if not done:
                expect("internal error" not in said and "Traceback" not in said, f"{name}: {said}")
                node.install("one", name, "large", job={"run": 2})
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
    node.helm("uninstall", "nightly")


QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: tight}
spec: {hard: {limits.memory: 4Gi}}
"""


def limits(node: Node) -> None:
    """A quota without room for workers; an upgrade, and back."""
    with node.timed("limits: a quota leaves no room for workers"):
        node.helm("uninstall", "one", "--wait", check=False)
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
        node.helm("rollback", "tight")
        back = [job for job in node.jobs("tight") if job not in known]
        done, said = node.finish(back[0]) if back else (True, "Nothing to do")
        expect(done and "Nothing to do" in said, said)
        node.released("before")
    node.helm("uninstall", "tight")


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
        changes["data"] = {"path": "s3://census/monthly", "minimum_records": ROWS["large"]}
        values["release"]["settings"] |= {**changes, "privacy": {"epsilon": 0.5, "delta": 1e-9}}
        node.install_values("monthly", values)
        return node.next_job("monthly", known, day)

    with node.timed("schedule: three months in some minutes"):
        done, said = node.finish(month("2026-01-31"))
        expect(done, said)
        done, said = node.finish(node.next_job("monthly", known, "2026-01-31"))
        expect(done and "Nothing to do" in said, f"the doubled run: {said}")
        begun = month("2026-03-31")  # February's run was missed
        node.charged("acs-2026-03", dataset, job=begun)
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
    node.helm("uninstall", "monthly")


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
    with node.timed("prefect: the flows of pages, what pods reach, a worker without rights"):
        pages = {
            "ledger": node.run_flow("ledger"),
            "evaluate": node.run_flow(
                "evaluate", release=f"s3://census-public/{node.dataset}/prefect", output="prefect"
            ),
        }
        node.helm_test("flows")
        node.probe("flows", "prefect")
        pod["metadata"]["labels"] = {
            name: text
            for name, text in pod["metadata"]["labels"].items()
            if "job-name" not in name and "controller" not in name
        }
        node.probe("flows", "flow", pod)
        for name, page in pages.items():
            done, said = node.finish("job/" + page["metadata"]["labels"]["job-name"])
            expect(done and node.last_state(name) == "COMPLETED", said)
        scarcity.denied(node, "without-rights")
    for kind in ("release", "prefect", "scheduler", "worker", "server"):  # each run has settings of its own
        with node.timed(f"prefect: {kind} deleted in the middle"):
            name = f"flow-{kind}"
            settings = json.dumps(
                {
                    "name": name,
                    "schema": "schema.yaml",
                    "output.path": f"s3://census-public/{node.dataset}/{name}",
                    "synthesis.records": 2 * ROWS["large"],  # long enough to be stopped in the middle
                }
            )
            flow = node.run_flow(settings=settings)
            node.charged(name, job="job/" + flow["metadata"]["labels"]["job-name"])
            if kind == "server":
                server.stop()
                time.sleep(5)
                node.serve_prefect()
            else:
                pods = [pod for pod in node.pods("flows", kind) if pod["status"]["phase"] == "Running"]
                gone = flow if kind == "release" else pods[-1]
                node.kubectl("delete", "pod", gone["metadata"]["name"], "--wait=false", "--grace-period=1")
            done, said = node.finish("job/" + flow["metadata"]["labels"]["job-name"])
            expect("internal error" not in said, f"{name}: {said}")
            expect("Traceback" not in said or kind == "server", f"{name}: {said}")  # Prefect's, of its own connection
            print(f"    the run {'completed' if done else 'failed'}; released: {node.charges(name)}")
            if node.charges(name) != ["committed"]:
                again = node.run_flow(settings=settings)
                done, said = node.finish("job/" + again["metadata"]["labels"]["job-name"])
                expect(done, said)
            node.released(name)
    node.helm("uninstall", "flows")


CASES: dict[str, Callable[[Node], None]] = {
    "job": job,
    "reached": reached,
    "deleted": deleted,
    "limits": limits,
    "cron": cron,
    "schedule": schedule,
    "prefect": prefect,
    "federated": sites.federated,
    "external": sites.external,
    "trusted": trust.trusted,
    "scarce": scarcity.scarce,
}
LANES = {
    "census": ["reached", "deleted", "limits"],
    "monthly": ["schedule", "scarce"],
    "flows": ["prefect"],
    "together": ["federated", "external", "cron", "trusted"],
}
"""Cases that follow `job`, side by side: by namespace, each with its data set."""


def run_lane(node: Node, names: list[str]) -> None:
    """Run cases one after the other."""
    for name in names:
        try:
            CASES[name](node)
        except Exception as error:
            print(f"FAILED {name}: {error}", flush=True)
            raise


def run_cases(node: Node, wanted: list[str]) -> None:
    """Run `job` alone, since its time counts, then the others."""
    places = {lane: node.at(lane) for lane, names in LANES.items() if set(names) & set(wanted) or lane == "census"}
    if {"job", "reached"} & set(wanted):
        job(places["census"])
    with ThreadPoolExecutor(len(LANES)) as pool:
        chosen = {lane: [name for name in names if name in wanted] for lane, names in LANES.items()}
        lanes = [pool.submit(run_lane, places[lane], names) for lane, names in chosen.items() if names]
    for lane in lanes:
        lane.result()


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
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        node = Node(given.node.resolve(), Path(folder))
        try:
            with node.timed("node and servers"):
                node.begin()
            with node.timed("image and tables"), ThreadPoolExecutor(1) as pool:
                tables = pool.submit(node.put_tables)
                if not given.no_image:
                    node.build()
                tables.result()
            run_cases(node, given.only)
        finally:
            node.prefect.stop()
            if not given.keep:
                node.cluster("down")
    node.seconds["all"] = round(time.perf_counter() - start, 1)
    for kind, reached in node.reached.items():
        print(f"{kind:10} " + ", ".join(f"{name} {'yes' if yes else 'no'}" for name, yes in reached.items()))
    print(f"all: {node.seconds['all']} s")
    if given.json:
        given.json.write_text(json.dumps({"seconds": node.seconds, "reached": node.reached}, indent=1) + "\n")


if __name__ == "__main__":
    main()
