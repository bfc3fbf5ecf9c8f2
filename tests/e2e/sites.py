"""A cluster whose parts are not one release of the chart: clients in a namespace each, a scheduler that ran before."""

import time
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from node import Node, expect
from servers import ROOT, Processes

from dpdist.federated.messages import identity_text

CLIENTS = ("north", "south")
RECORDS = 8_000
WORKERS = ("worker-1", "worker-2")
SCHEMA = ROOT / "deploy/releases/schemas/adult.yaml"


def federated(node: Node) -> None:
    """Three namespaces: the coordinator's and one of each client, whose secrets stay there; a client's worker dies."""
    places = {name: node.at(name) for name in CLIENTS}
    with node.timed("federated: three namespaces, released"):
        identities = {name: admit(node, place) for name, place in places.items()}
        spec = federated_spec(node, places, identities)
        coordinate(node, "mixture", spec)
        for name, place in places.items():
            place.install_values(name, client_values(place, name))
        done, said = node.finish(node.newest_job("fed"))
        expect(done, said)
        mixed(node, places, "mixture")
    with node.timed("federated: what a client's pod reaches"):
        asked = node.targets("fed") | {
            "other client": (places["south"].pods("south", "worker")[-1]["status"]["podIP"], 8788)
        }
        places["north"].reaches("north", "worker", asked, "client")
        places["north"].helm_test("north")
    with node.timed("federated: a client's worker deleted in the middle"):
        coordinate(node, "again", spec)
        begun = node.newest_job("fed")
        node.charged("again")
        pod = places["north"].pods("north", "worker")[-1]["metadata"]["name"]
        places["north"].kubectl("delete", "pod", pod, "--wait=false", "--grace-period=1")
        done, said = node.finish(begun)
        print("    " + ("completed" if done else f"failed: {said.strip().splitlines()[-1]}"))
        if not done:
            expect("internal error" not in said and "Traceback" not in said, said)
            coordinate(node, "again", spec, job={"run": 2})
            done, said = node.finish(node.newest_job("fed"))
            expect(done, said)
        mixed(node, places, "again")
    node.helm("uninstall", "fed")
    for name, place in places.items():
        place.helm("uninstall", name)


def admit(node: Node, place: Node) -> str:
    """Give a client's namespace its table, its secrets and the workers' certificate; its public identity."""
    name = place.namespace
    table = place.folder / "adult.parquet"
    node.dpdist("sample", table, "--schema", SCHEMA, "--rows", str(RECORDS))
    place.upload(table, f"census/{name}/adult.parquet")
    own = ("--prefix", name, "--only", "kek", "--only", "ledger", "--only", "storage")
    secrets = node.dpdist("cluster", "secrets", "--namespace", name, *own)
    node.run("kubectl", "apply", "--server-side", "-f", "-", input=secrets)
    worker = yaml.safe_load(node.kubectl("get", "secret", "dpdist-tls-worker", "-o", "yaml"))
    worker["metadata"] = {"name": "dpdist-tls-worker"}
    place.kubectl("delete", "secret", "dpdist-tls-worker")
    place.kubectl("create", "-f", "-", input=yaml.safe_dump(worker))
    key = Ed25519PrivateKey.generate()
    file = place.folder / "identity.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    place.kubectl("create", "secret", "generic", f"{name}-identity", f"--from-file=key.pem={file}")
    return identity_text(key)


def federated_spec(node: Node, places: dict[str, Node], identities: dict[str, str]) -> Path:
    """A mixture of Adult's schema with two clients."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "deploy/releases/adult-federated.yaml").read_text())
    spec.pop("ledger", None)
    spec |= {"dataset": node.dataset, "data": {"format": "parquet", "minimum_records": RECORDS - 500}}
    least = RECORDS // 4
    spec["mixing"]["classes"] = {value: {"minimum": least, "records": 2 * least} for value in spec["mixing"]["classes"]}
    spec["federated"] = {"trust": "local"}  # masks of two clients hide nothing
    spec["federated"]["clients"] = [
        {
            "name": name,
            "path": f"s3://census/{name}/adult.parquet",
            "dataset": place.dataset,
            "work": f"s3://census-confidential/{name}",
            "identity": "/run/secrets/dpdist/identity.pem",
            "public_key": identities[name],
        }
        for name, place in places.items()
    ]
    path = node.folder / "federated.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def coordinate(node: Node, name: str, spec: Path, **more: Any) -> None:
    """Install the release that brings the scheduler, for a mixture of this name."""
    given = node.values(name, **more)
    given["release"]["settings"].pop("synthesis")
    given["release"]["settings"].pop("data")
    given["release"]["settings"].pop("model")
    given["dask"]["workers"]["replicas"] = 1
    given["dask"]["joining"] = len(CLIENTS)
    given["networkPolicy"]["members"] = [peer(client, "worker") for client in CLIENTS]
    node.install_values("fed", given, spec=spec, schema=SCHEMA)


def client_values(place: Node, name: str) -> dict[str, Any]:
    """Values of mode workers for a client."""
    given = place.values("")
    policy = given["networkPolicy"]
    own = {kind: {"existingSecret": f"{name}-{kind}"} for kind in ("storage", "kek")}
    own["ledger"] = {"existingSecret": f"{name}-ledger", "key": "url"}
    own["identity"] = {"existingSecret": f"{name}-identity", "key": "key.pem"}
    group = {"name": name, "replicas": 1, "resources": {f"client-{name}": 1}, "secrets": own}
    workers = {key: given["dask"]["workers"][key] for key in ("cpu", "memory")}
    return {
        "image": given["image"],
        "storage": given["storage"],
        "mode": "workers",
        "dask": {
            "mode": "external",
            "address": "tls://fed-dpdist-scheduler.together:8786",
            "workers": workers,
            "groups": [group],
        },
        "networkPolicy": {
            **{rule: policy[rule] for rule in ("storage", "ledger")},
            "members": [peer("together", kind) for kind in ("scheduler", "worker")],
        },
    }


def peer(namespace: str, component: str) -> dict[str, Any]:
    """Pods of a kind in a namespace, as network policies name them."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"dpdist/component": component}},
    }


def mixed(node: Node, places: dict[str, Node], name: str) -> None:
    """One charge in each ledger, and a release that verifies."""
    for place in (node, *places.values()):
        found = place.charges(name)
        expect(found == ["committed"], f"{name}: {found} in the ledger of {place.namespace}")
    node.dpdist("verify", f"s3://census-public/{node.dataset}/{name}", "--ledger", node.environment["DPDIST_LEDGER"])


def external(node: Node) -> None:
    """A scheduler and workers outside Kubernetes, with TLS; the scheduler dies and comes back."""
    cluster = Processes(node.folder)
    cluster.environment = node.environment | {"DPDIST_KEK_FILE": str(node.folder / "kek")}
    (node.folder / "kek").write_text(node.secret("dpdist-kek", "kek"))
    files = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
    for role in ("scheduler", "worker"):
        for kind, key in files.items():
            (node.folder / f"{role}-{kind}.pem").write_text(node.secret(f"dpdist-tls-{role}", key))

    def tls(role: str) -> list[str]:
        names = {"ca-file": "ca", "cert": "cert", "key": "key"}
        return [part for name, kind in names.items() for part in (f"--tls-{name}", f"{node.folder}/{role}-{kind}.pem")]

    def begin() -> None:
        place = ("--host", node.ip, "--no-dashboard")
        own = ("--protocol", "tls", "--port", "8786", *tls("scheduler"))
        cluster.start("scheduler", "scheduler", *place, *own, module="dask")
        for name in WORKERS:  # they end with their scheduler
            own = ("--nthreads", "1", "--memory-limit", "1GiB", "--local-directory", str(node.folder / name))
            address = f"tls://{node.ip}:8786"
            cluster.start(
                name, "worker", address, *place, *own, "--death-timeout", "120", *tls("worker"), module="dask"
            )

    values = {
        "dask": {"mode": "external", "address": f"tls://{node.ip}:8786", "timeout": 60},
        "networkPolicy": {
            **node.values("")["networkPolicy"],
            "dask": {"to": [{"ipBlock": {"cidr": f"{node.ip}/32"}}], "ports": [8786]},
        },
    }
    try:
        with node.timed("external: released"):
            begin()
            node.install("outside", "outside", **values)
            done, said = node.finish(node.newest_job("outside"))
            expect(done, said)
            node.released("outside")
        with node.timed("external: the scheduler ends in the middle"):
            node.install("outside", "resumed", "large", **values)
            begun = node.newest_job("outside")
            node.charged("resumed")
            time.sleep(1)
            for name in ("scheduler", *WORKERS):
                cluster.end(name)
            done, said = node.finish(begun)
            print("    " + ("completed" if done else f"failed: {said.strip().splitlines()[-1]}"))
            expect("internal error" not in said and "Traceback" not in said, said)
            begin()
            if not done:
                node.install("outside", "resumed", "large", job={"run": 2}, **values)
                done, said = node.finish(node.newest_job("outside"))
                expect(done, said)
            node.released("resumed")
    finally:
        cluster.stop()
    node.helm("uninstall", "outside")
