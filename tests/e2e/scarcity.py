"""What a cluster runs out of: memory of workers, room to spill, rights."""

import json

from node import Node, expect
from servers import wait_for

ROOM = "64Mi"
EATING = """
import os, subprocess, sys
for process in set(filter(str.isdigit, os.listdir("/proc"))) - {"1", str(os.getpid())}:
    with open(f"/proc/{process}/oom_score_adj", "w") as score:
        score.write("1000")  # the kernel ends these first
eat = "import time; held = b'x' * (64 << 20); time.sleep(25)"
eaters = [subprocess.Popen([sys.executable, "-c", eat]) for _ in range(24)]
for eater in eaters:
    eater.wait()
"""
"""Needs more memory than the worker's container has, in processes that are smaller than the worker."""


def scarce(node: Node) -> None:
    """A worker whose memory ends in the middle of a release; one whose volume for spilling is full, before another."""
    with node.timed("scarce: a worker out of memory"):
        dask = node.values("")["dask"]
        dask["workers"]["spill"] = {"size": ROOM, "storageClassName": ""}
        node.install("scarce", "memory", "large", dask=dask)
        begun = node.newest_job("scarce")
        node.charged("memory", job=begun)
        name = running_worker(node)
        node.kubectl("exec", name, "-c", "worker", "--", "python", "-c", EATING, check=False)
        done, said = node.finish(begun)
        print("    " + ("completed" if done else f"failed: {said.strip().splitlines()[-1]}"))

        def killed() -> bool:
            log = node.kubectl("logs", name, "-c", "worker", check=False)
            return "was killed by signal 9" in log or log.count("Start Nanny") > 1

        wait_for("the end of the worker", killed, seconds=60, alive=lambda: None, every=1)
        if not done:
            expect("Traceback" not in said and "internal error" not in said, said)
            node.install("scarce", "memory", "large", dask=dask, job={"run": 2})
            done, said = node.finish(node.newest_job("scarce"))
            expect(done, said)
        node.released("memory")
    with node.timed("scarce: a full volume for spilling"):
        name = running_worker(node)
        node.kubectl("exec", name, "-c", "worker", "--", "dd", "if=/dev/zero", "of=/spill/full", "bs=1M", "count=96")
        why = "jsonpath={.status.reason}"
        wait_for(
            "the eviction of the worker",
            lambda: "Evicted" in node.kubectl("get", "pod", name, "-o", why, check=False),
            seconds=150,
            alive=lambda: None,
            every=1,
        )
        node.install("scarce", "spill", "large", dask=dask)  # the worker in its place may not be there yet
        done, said = node.finish(node.newest_job("scarce"))
        expect(done, said)
        node.released("spill")
    node.helm("uninstall", "scarce")


def running_worker(node: Node) -> str:
    """Name of a worker's pod that runs."""
    pods = node.pods("scarce", "worker")
    return str(next(pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"))


def denied(node: Node, name: str) -> None:
    """A Prefect worker that may not make Jobs: its run crashes, nothing is charged, and the rights come back."""
    binding = ("rolebinding", "flows-dpdist-prefect")
    before = json.loads(node.kubectl("get", *binding, "-o", "json"))
    before["metadata"] = {key: before["metadata"][key] for key in ("name", "labels", "annotations")}
    node.kubectl("delete", *binding)
    try:
        node.order_flow(settings=json.dumps({"name": name, "schema": "schema.yaml"}))
        wait_for(
            "the end of a run without rights",
            lambda: node.last_state("release") in ("CRASHED", "FAILED"),
            seconds=120,
            alive=node.prefect.alive,
            every=1,
        )
        expect(not node.charges(name), "a charge of a run that never began")
    finally:
        node.kubectl("apply", "-f", "-", input=json.dumps(before))
