"""Eight clients by mailbox, each a process of a user of its own: what each sees, sends, and pays.

    python tests/e2e/mailbox.py [--s3] [--dask] [--keep]

Runs the commands of `docs/how-to/federated.md`, with other names, on UCI Adult dealt to eight clients: each makes its
key and its ledger; one looks at the spec, all accept what was shown, and answer; the coordinator releases. The mailbox
is a folder of a common group; with ``--s3`` then also a bucket of Ceph, where everybody has credentials of its own, and
where `tests/federated/test_mailbox.py` lets letters be altered. With ``--dask`` the same clients release once more, as
workers of a cluster on this machine. As root, every process runs as another user.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from federated import FIRST_USER, NAMES, ROOT, expect, ledgers, lines_of, own, planted_name
from servers import Processes, install_missing

from dpdist.storage.store import Store

GROUP = 41_000
EVERYBODY = (*NAMES, "coordinator")
MOST_BYTES = 10 << 20
MOST_MESSAGES = 9
"""With tables; a client also joins, is ready, and commits."""
PATH = f"{ROOT}:{sysconfig.get_paths()['purelib']}"


def guide() -> list[str]:
    """The commands of the guide for clients by mailbox, in order."""
    lines = (ROOT / "docs/how-to/federated.md").read_text().split("```")[1].splitlines()
    commands = [line.partition("  #")[0].strip() for line in lines]
    return [line for line in commands if line.startswith(("openssl", "dpdist"))]


def others_run(python: str) -> bool:
    """Whether other users can run a Python with this package."""
    tried = ["setpriv", "--reuid", str(FIRST_USER), "--regid", str(GROUP), "--clear-groups", "sh", "-c"]
    environment = {**os.environ, "PYTHONPATH": PATH}
    try:
        done = subprocess.run(
            [*tried, f"{python} -c 'import dpdist.cli'"], cwd="/", env=environment, capture_output=True
        )
    except OSError:
        return False
    return done.returncode == 0


class Users:
    """Commands, as users of their own where that is possible."""

    def __init__(self, folder: Path, access: dict[str, dict[str, str]]) -> None:
        self.folder, self.access = folder, access  # what a user has in its environment
        runs = [python for python in (sys.executable, "/usr/bin/python3") if os.geteuid() == 0 and others_run(python)]
        self.isolated = bool(runs) and shutil.which("setpriv") is not None
        (folder / "bin").mkdir()
        (folder / "bin/dpdist").write_text(f'#!/bin/sh\nexec {[*runs, sys.executable][0]} -m dpdist "$@"\n')
        (folder / "box").mkdir()
        for name in EVERYBODY:
            self.home(name).mkdir()
        for place in (folder, folder / "bin", folder / "bin/dpdist"):
            place.chmod(0o755)

    users = {name: FIRST_USER + number for number, name in enumerate(EVERYBODY)}  # noqa: RUF012

    def isolate(self) -> None:
        """Give each user its folder, and a group the mailbox."""
        if self.isolated:
            os.chown(self.folder / "box", 0, GROUP)
            (self.folder / "box").chmod(0o2770)
            for name, user in self.users.items():
                own(self.home(name), user)

    def home(self, name: str) -> Path:
        """The folder that is a user's alone."""
        return self.folder / name

    def start(self, name: str, command: str, **names: str) -> subprocess.Popen[str]:
        """Start a command of the guide, with other names, as a user."""
        names |= {"north": name, "patients": name, "SPEC": f"{self.folder}/spec.yaml"}
        for old, new in {**names, "sqlite:////var/lib/dpdist": f"sqlite:///{self.home(name)}"}.items():
            command = command.replace(old, new)
        user = ["setpriv", "--reuid", str(self.users[name]), "--regid", str(GROUP), "--clear-groups"]
        environment = {**os.environ, "PYTHONPATH": PATH, "HOME": str(self.home(name)), **self.access.get(name, {})}
        environment["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        run = [*(user if self.isolated else []), "sh", "-c", command]
        return subprocess.Popen(run, text=True, env=environment, cwd=self.home(name), umask=0o007, **pipes)

    def run(self, name: str, command: str, **names: str) -> str:
        """Run a command of a user; return what it says."""
        process = self.start(name, command, **names)
        said, _ = process.communicate()
        expect(process.returncode == 0, f"{name}: {said[-2000:]}")
        return said


def prepare(users: Users, mailbox: str) -> dict[str, Any]:
    """Deal the table to clients, who make their keys and ledgers, and write the spec of a synthesis."""
    key, public, ledger, *_ = guide()
    lines = [f"{line}, {planted_name(NAMES[i % 8])}-{i}" for i, line in enumerate(lines_of(users.folder))]
    for number, name in enumerate(NAMES):
        (users.home(name) / "adult.data").write_text("\n".join(lines[number::8]) + "\n")
    users.isolate()
    members = {}
    for name in EVERYBODY:
        users.run(name, key)
        users.run(name, ledger)
        home, text = users.home(name), users.run(name, public).splitlines()[1]
        members[name] = {"name": name, "path": f"{home}/adult.data", "dataset": name, "work": f"{home}/work"}
        members[name] |= {"ledger": f"sqlite:///{home}/ledger.db", "public_key": text}
        members[name]["identity"] = f"{home}/identity.pem"
    spec = yaml.safe_load((ROOT / "deploy/releases/adult-federated.yaml").read_text())
    leader = members.pop("coordinator")
    spec |= {"kind": "synthesis", "name": "adult-by-mailbox", "privacy": {"epsilon": 1, "delta": 1e-9}}
    spec |= {"cluster": {"timeout": 600}, **{name: leader[name] for name in ("dataset", "ledger", "work")}}
    spec["schema"] = yaml.safe_load((ROOT / "deploy/releases/schemas/adult.yaml").read_text())
    spec["data"]["csv"]["columns"].append("respondent")
    spec["data"] |= {"minimum_records": 30_000, "extra_columns": "ignore"}
    del spec["mixing"]
    spec["output"]["path"] = f"{users.home('coordinator')}/release"
    spec["federated"] |= {"mailbox": mailbox, "clients": list(members.values())}
    spec["federated"] |= {name: leader[name] for name in ("identity", "public_key")}
    (users.folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return dict(spec)


def look(users: Users) -> None:
    """Nobody reads the folder of another."""
    for client in NAMES if users.isolated else ():
        for name in ("c1", "c8", "coordinator"):
            read = users.start(name, f"cat {users.home(client)}/adult.data >/dev/null")
            read.communicate()
            expect((read.returncode == 0) == (name == client), f"{name} and the file of {client}")


def letters(mailbox: str) -> dict[str, tuple[int, int]]:
    """Messages of each client with tables, and bytes of all."""
    found, box = {}, Store(mailbox)
    for name in NAMES:
        content = [box.read_bytes(file) for file in box.names() if file.endswith(f".{name}")]
        expect(not any(planted_name(n).encode() in text for text in content for n in NAMES), "records in the mailbox")
        found[name] = len(content) - 3, sum(map(len, content))
    return found


def release(folder: Path, mailbox: str, access: dict[str, dict[str, str]]) -> Users:
    """A release by mailbox, as the guide says."""
    users = Users(folder, access)
    spec = prepare(users, mailbox)
    print(
        f"==> eight clients by {mailbox}, {'each a user of its own' if users.isolated else 'all one user'}", flush=True
    )
    look(users)
    *_, join, accept, make = guide()
    sha = re.findall(r"--accept ([0-9a-f]{64})", shown := users.run("c1", join))
    expect(len(sha) == 1, shown)
    clients = {name: users.start(name, accept, SHA256=sha[0]) for name in NAMES}
    start = time.perf_counter()
    users.run("coordinator", make)
    seconds = time.perf_counter() - start
    for name, client in clients.items():
        said, _ = client.communicate()
        expect(client.returncode == 0 and said.rstrip().endswith("committed"), f"{name}: {said[-2000:]}")
    users.run("coordinator", f"dpdist verify {spec['output']['path']}")
    ledgers(spec)
    sent = letters(mailbox)
    expect(all(number <= MOST_MESSAGES and size <= MOST_BYTES for number, size in sent.values()), str(sent))
    print(f"messages with tables, and bytes of all: {sent}; released in {seconds:.0f} s", flush=True)
    return users


def once_more(users: Users) -> None:
    """The same release by clients that are workers of a cluster, by one user."""
    spec = yaml.safe_load((users.folder / "spec.yaml").read_text())
    for name in ("mailbox", "identity", "public_key"):
        del spec["federated"][name]
    spec |= {"name": "adult-by-dask", "cluster": {"mode": "embedded", "timeout": 600, "memory_limit": "1GiB"}}
    spec["output"]["path"] += "-by-dask"
    (users.folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    users.isolated, start = False, time.perf_counter()
    users.run("coordinator", guide()[-1])
    print(f"by Dask, released in {time.perf_counter() - start:.0f} s", flush=True)


def bucket(processes: Processes) -> dict[str, dict[str, str]]:
    """Start Ceph with a bucket where everybody may look, read and add; return what each has in its environment."""
    install_missing()
    ceph, access = processes.script("ceph")(), {}
    for name in EVERYBODY:
        create = ["radosgw-admin", "-c", f"{ceph['dir']}/ceph.conf", "user", "create", "--uid", name]
        made = subprocess.run([*create, "--display-name", name], check=True, capture_output=True).stdout
        key = json.loads(made)["keys"][0]
        access[name] = {"AWS_ACCESS_KEY_ID": key["access_key"], "AWS_SECRET_ACCESS_KEY": key["secret_key"]}
        access[name]["AWS_ENDPOINT_URL"] = ceph["endpoint"]
    os.environ |= {"AWS_ACCESS_KEY_ID": ceph["key"], "AWS_SECRET_ACCESS_KEY": ceph["secret"]}
    os.environ["AWS_ENDPOINT_URL"] = ceph["endpoint"]
    import s3fs

    fs, users = s3fs.S3FileSystem(), [f"arn:aws:iam:::user/{name}" for name in ("dpdist", *EVERYBODY)]
    fs.mkdir("shared")
    allowed = {
        "Effect": "Allow",
        "Principal": {"AWS": users},
        "Action": ["s3:ListBucket", "s3:GetObject", "s3:PutObject"],
    }
    allowed["Resource"] = ["arn:aws:s3:::shared", "arn:aws:s3:::shared/*"]
    fs.call_s3(
        "put_bucket_policy", Bucket="shared", Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    )
    return access


def refusals() -> None:
    """Letters that are altered, truncated, replayed, foreign or late, in a bucket."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/federated/test_mailbox.py"]
    environment = {**os.environ, "DPDIST_TEST_S3": os.environ["AWS_ENDPOINT_URL"]}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout[-3000:])
    print(f"in the bucket, {done.stdout.splitlines()[-1]}", flush=True)


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--s3", action="store_true", help="then also in a bucket of Ceph")
    parser.add_argument("--dask", action="store_true", help="then also by Dask")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dpdist-mailbox-"))
    folder.chmod(0o755)
    processes = Processes(folder)
    try:
        (folder / "first").mkdir()
        users = release(folder / "first", f"{folder}/first/box", {})
        if arguments.dask:
            once_more(users)
        if arguments.s3:
            access = bucket(processes)
            refusals()
            (folder / "second").mkdir()
            release(folder / "second", "s3://shared/box", access)
    except BaseException:
        arguments.keep = True
        raise
    finally:
        processes.stop()
        print(f"files: {folder}") if arguments.keep else shutil.rmtree(folder)


if __name__ == "__main__":
    main()
