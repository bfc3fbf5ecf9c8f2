"""What a cluster runs out of: memory of workers, room to spill, rights."""

from __future__ import annotations

import json

from node import Node, expect
from servers import wait_for

TINY = "320Mi"
ROOM = "64Mi"


def scarce(node: Node) -> None:
    """Workers without enough memory, then one whose volume for spilling is full."""
    with node.timed("scarce: workers out of memory"):
        dask = node.values("")["dask"]
        small = {**dask, "timeout": 60, "workers": {**dask["workers"], "memory": TINY}}
        node.install("scarce", "memory", "large", dask=small)
        done, said = node.finish(node.newest_job("scarce"))
        print("    " + said.strip().splitlines()[-1])
        expect(not done and "worker" in said and "Traceback" not in said and "internal error" not in said, said)
        node.install("scarce", "memory", "large", job={"run": 2})
        done, said = node.finish(node.newest_job("scarce"))
        expect(done, said)
        node.released("memory")
    with node.timed("scarce: a full volume for spilling"):
        workers = {**dask["workers"], "spill": {"size": ROOM, "storageClassName": ""}}
        node.install("scarce", "spill", "large", dask={**dask, "workers": workers})
        begun = node.newest_job("scarce")
        node.charged("spill", job=begun)
        pod = next(pod for pod in node.pods("scarce", "worker") if pod["status"]["phase"] == "Running")
        name = pod["metadata"]["name"]
        node.kubectl("exec", name, "-c", "worker", "--", "dd", "if=/dev/zero", "of=/spill/full", "bs=1M", "count=96")
        why = "jsonpath={.status.reason}"
        wait_for(
            "the eviction of the worker",
            lambda: "Evicted" in node.kubectl("get", "pod", name, "-o", why, check=False),
            seconds=150,
            alive=lambda: None,
            every=1,
        )
        done, said = node.finish(begun)
        print("    " + ("completed" if done else f"failed: {said.strip().splitlines()[-1]}"))
        if not done:
            expect("Traceback" not in said and "internal error" not in said, said)
            node.install("scarce", "spill", "large", job={"run": 2})
            done, said = node.finish(node.newest_job("scarce"))
            expect(done, said)
        node.released("spill")
    node.helm("uninstall", "scarce")


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
