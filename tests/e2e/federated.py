"""Eight clients on eight worker processes with TLS: who ran what, what left each worker, and what is found elsewhere.

    python tests/e2e/federated.py [--json FILE] [--keep]

Deals UCI Adult to eight clients, with a planted name in a column that no schema knows. As root, every worker runs as
a user of its own, to whom alone its client's folder belongs, and the coordinator as another. The workers reach others,
and are reached, through wires that count bytes. Releases by the command line, verifies, and looks.
"""

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from wires import Ran, WiredClients  # noqa: E402

from dpdist.cluster.certificates import write_certificates  # noqa: E402
from dpdist.ledger import Books  # noqa: E402
from dpdist.spec.reader import load  # noqa: E402

DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")) / "adult.data"
NAMES = tuple(f"c{number}" for number in range(1, 9))
FIRST_USER = 40_000
CONTROL = 150_000
"""Bytes of messages of the cluster that may leave a worker besides its mixtures."""
HEARTBEATS = 5_000
"""The same, a second."""


def expect(condition: object, message: str) -> None:
    """Stop with a message unless something holds."""
    if not condition:
        raise SystemExit(f"FAILED: {message}")


def prepare(folder: Path) -> dict[str, Any]:
    """Deal the table; every client's folder belongs to a user of its own."""
    planted = folder / "adult.data"
    lines = lines_of(folder)
    planted.write_text("".join(f"{line}, {planted_name(NAMES[i % 8])}-{i}\n" for i, line in enumerate(lines)))
    spec = yaml.safe_load((ROOT / "deploy/releases/adult-federated.yaml").read_text())
    spec["schema"] = yaml.safe_load((ROOT / "deploy/releases/schemas/adult.yaml").read_text())
    spec["data"]["csv"]["columns"].append("respondent")
    spec["data"]["extra_columns"] = "ignore"
    (folder / "template.yaml").write_text(yaml.safe_dump(spec))
    deal = [sys.executable, ROOT / "deploy/recipes/deal.py", folder / "template.yaml", planted, folder / "federation"]
    subprocess.run(deal, check=True, stdout=subprocess.DEVNULL)
    planted.unlink()
    write_certificates(folder / "tls")
    return dict(yaml.safe_load((folder / "federation/spec.yaml").read_text()))


def lines_of(folder: Path) -> list[str]:
    """UCI Adult, where there is a copy of it; else a made-up table of its schema with its share of incomes."""
    if DATA.exists():
        return [line for line in DATA.read_text().splitlines() if line.strip()]
    print(f"no {DATA.name} in DPDIST_DATA: a made-up table is released instead")
    file = folder / "made-up.csv"
    schema = ROOT / "deploy/releases/schemas/adult.yaml"
    command = [sys.executable, "-m", "dpdist", "sample", file, "--schema", schema, "--rows", "32561"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    spec = yaml.safe_load((ROOT / "deploy/releases/adult-federated.yaml").read_text())
    with file.open() as content:
        rows = list(csv.DictReader(content))
    for number, row in enumerate(rows):
        row["income"] = ">50K" if number % 25 < 6 else "<=50K"
    return [", ".join(row.get(name) or "0" for name in spec["data"]["csv"]["columns"]) for row in rows]


def planted_name(client: str) -> str:
    """What is planted in every record of a client."""
    return f"planted-{client}-4711"


def own(path: Path, user: int) -> None:
    """Give a folder to a user, and to nobody else."""
    for place in (path, *path.rglob("*")):
        os.chown(place, user, user)
        os.chmod(place, 0o700 if place.is_dir() else 0o600)


def as_user(user: int) -> list[str]:
    """What runs a command as a user."""
    return ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]


class Users(WiredClients):
    """Wired clients whose workers run as users of their own."""

    users: dict[str, int] = {}  # noqa: RUF012

    def start_client(self, name: str, *, resources: str = "") -> None:
        """Start the worker of a client as its user."""
        self.prefix = as_user(self.users[name]) if name in self.users else []
        super().start_client(name, resources=resources)
        self.prefix = []


def isolate(folder: Path, processes: Users, spec: dict[str, Any]) -> bool:
    """Make users of the system. Returns whether that is possible here."""
    python = [sys.executable, "-c", "import distributed, dpdist.lifecycle.run"]
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        return False
    if subprocess.run([*as_user(FIRST_USER), *python], cwd="/", capture_output=True).returncode != 0:
        return False  # this Python is not for others
    for path in (folder, folder / "federation", folder / "processes"):
        path.chmod(0o711)
    for key in (folder / "tls").iterdir():
        key.chmod(0o644)
    (folder / "tls").chmod(0o755)
    users = {name: FIRST_USER + number for number, name in enumerate(NAMES)}
    for name, user in users.items():
        own(folder / "federation" / name, user)
        own(processes.faults(name), user)
        client = next(c for c in spec["federated"]["clients"] if c["name"] == name)
        reads = ["cat", client["path"]]
        for other in (user, user + 1):
            tried = subprocess.run([*as_user(other), *reads], capture_output=True)
            expect((tried.returncode == 0) == (other == user), f"user {other} and the file of {name}")
    processes.users = users
    return True


def release(folder: Path, processes: Users, spec: dict[str, Any], *, isolated: bool) -> dict[str, Any]:
    """Release by the command line, as a user who may read no client's folder."""
    tls = folder / "tls"
    security = {"ca": f"{tls}/ca.pem", "cert": f"{tls}/client.pem", "key": f"{tls}/client-key.pem"}
    spec["cluster"] = {"mode": "address", "address": processes.address, "timeout": 120, "security": security}
    home = folder / "coordinator"
    home.mkdir()
    for name in ("ledger.db", "ledger.db.kek"):  # the key opens the signing identity of the data set
        shutil.move(folder / "federation" / name, home / name)
    spec |= {"ledger": f"sqlite:///{home}/ledger.db", "work": str(home / "work")}
    spec["output"]["path"] = str(home / "release")
    load(spec)
    (home / "spec.yaml").write_text(yaml.safe_dump(spec))
    user: list[str] = []
    if isolated:
        own(home, FIRST_USER + 100)
        user = as_user(FIRST_USER + 100)
    command = [*user, sys.executable, "-m", "dpdist", "release", str(home / "spec.yaml"), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home), "DPDIST_LOG": "json"}
    with (folder / "processes" / "coordinator.log").open("wb") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=environment, cwd="/")
    expect(done.returncode == 0, (folder / "processes" / "coordinator.log").read_text()[-2000:])
    subprocess.run([sys.executable, "-m", "dpdist", "verify", str(home / "release")], check=True, cwd=ROOT)
    return dict(json.loads(done.stdout))


def ledgers(spec: dict[str, Any]) -> None:
    """Every client's ledger and the coordinator's hold one committed charge."""
    books = {c["name"]: (c["ledger"], c["dataset"]) for c in spec["federated"]["clients"]}
    for name, (url, dataset) in {"coordinator": (spec["ledger"], spec["dataset"]), **books}.items():
        ledger = Books.open(url, create=False)
        found = [attempt.state for attempt in ledger.verify(dataset).attempts]
        ledger.close()
        expect(found == ["committed"], f"the ledger of {name}: {found}")


def search(folder: Path, processes: Users, state: str) -> list[str]:
    """Where planted names, identities or keys are found that should not be."""
    places = {"state of the scheduler": state.encode()}
    places |= {f"bytes from {name}": processes.left(name) for name in NAMES}
    places |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = []
    for name in NAMES:
        home = folder / "federation" / name
        secrets = [planted_name(name).encode(), (home / "identity.pem").read_bytes().splitlines()[1]]
        secrets.append((home / "ledger.db.kek").read_bytes().strip())
        expect(secrets[0] in places[str(home / "adult.data")], "what was planted is there")
        inside = tuple(str(path) for path in home.rglob("*"))
        found += [place for place, text in places.items() if place not in inside and any(s in text for s in secrets)]
    return found


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dpdist-federated-"))
    (folder / "processes").mkdir()
    spec = prepare(folder)
    processes = Users(folder / "processes", NAMES, certificates=folder / "tls")
    isolated = isolate(folder, processes, spec)
    print(f"==> eight clients with TLS, {'each a user of its own' if isolated else 'all one user'}", flush=True)
    try:
        processes.start()
        before = {name: len(processes.left(name)) for name in NAMES}
        with processes.client() as client:
            client.register_plugin(Ran())
            start = time.perf_counter()
            outcome = release(folder, processes, spec, isolated=isolated)
            seconds = round(time.perf_counter() - start, 1)
            tasks = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.plugins["ran"].seen)
            state = client.run_on_scheduler(lambda dask_scheduler: repr(dask_scheduler._to_dict()))
        ledgers(spec)
        own_address = {name: processes.contact(name) for name in NAMES}
        for key, _, worker in tasks:
            match = re.match(r"client-\w+-(c\d)-", key)
            expect(match and own_address[match[1]] == worker, f"{key} on {worker}")
        manifest = json.loads((folder / "coordinator/release/_manifest.json").read_text())
        width, records = manifest["parameters"]["coordinates"], manifest["records"]
        left = {name: len(processes.left(name)) - before[name] for name in NAMES}
        message = 8 * width * records
        for name, size in left.items():
            expect(
                message <= size <= message + CONTROL + HEARTBEATS * seconds,
                f"{size} bytes left {name}, its messages have {message}",
            )
        leaks = search(folder, processes, state)
        expect(not leaks, f"found in {leaks}")
    except BaseException:
        arguments.keep = True
        raise
    finally:
        processes.stop()
        print(f"logs: {folder}") if arguments.keep else shutil.rmtree(folder)
    figures = {
        "clients": manifest["parameters"]["clients"],
        "isolated": isolated,
        "tasks": len(tasks),
        "message_bytes": message,
        "left_bytes": left,
        "seconds": seconds,
    }
    print(
        f"{len(tasks)} transitions, each on its client's worker; bytes of messages {message:,}, of each worker {left}"
    )
    print(f"{outcome['records']:,} records; nothing planted was found elsewhere; release {seconds} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
