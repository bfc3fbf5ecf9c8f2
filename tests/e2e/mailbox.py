"""Eight clients by mailbox, each a process of a user of its own: what each sees, sends, and pays.

    python tests/e2e/mailbox.py [--mailbox s3://BUCKET/PREFIX --endpoint URL] [--keep]

Deals UCI Adult to eight clients with `deploy/recipes/deal.py`, and follows `docs/how-to/federated.md`: one looks at the
spec, all accept what was shown, and answer; the coordinator releases. The mailbox is a folder of a common group, or
a bucket. As root, every process runs as another user.
"""

from __future__ import annotations

import argparse
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

GROUP = 41_000
MOST_BYTES = 10 << 20
MOST_MESSAGES = 9
"""With tables; a client also joins, is ready, and commits."""


def prepare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Deal the table to clients of a synthesis."""
    spec = yaml.safe_load((ROOT / "deploy/releases/adult-federated.yaml").read_text())
    spec["schema"] = yaml.safe_load((ROOT / "deploy/releases/schemas/adult.yaml").read_text())
    spec |= {"kind": "synthesis", "name": "adult-by-mailbox", "privacy": {"epsilon": 1, "delta": 1e-9}}
    spec["data"]["csv"]["columns"].append("respondent")
    spec["data"] |= {"minimum_records": 30_000, "extra_columns": "ignore"}
    del spec["mixing"]
    box = folder / "box"
    spec["cluster"] = {"timeout": 600}
    spec["federated"] |= {"mailbox": arguments.mailbox or str(box)}
    if arguments.endpoint:
        spec["federated"]["storage"] = {"endpoint_url": arguments.endpoint}
    (folder / "template.yaml").write_text(yaml.safe_dump(spec))
    table = folder / "adult.data"
    table.write_text("".join(f"{line}, {planted_name(NAMES[i % 8])}-{i}\n" for i, line in enumerate(lines_of(folder))))
    deal = [sys.executable, ROOT / "deploy/recipes/deal.py", folder / "template.yaml", table, folder / "federation"]
    subprocess.run(deal, check=True, stdout=subprocess.DEVNULL)
    table.unlink()
    made: dict[str, Any] = yaml.safe_load((folder / "federation/spec.yaml").read_text())
    box.mkdir()
    home = folder / "coordinator"
    home.mkdir()
    for name in ("ledger.db", "ledger.db.kek", "identity.pem"):
        shutil.move(folder / "federation" / name, home / name)
    made |= {"ledger": f"sqlite:///{home}/ledger.db", "work": str(home / "work")}
    made["output"]["path"] = str(home / "release")
    made["federated"]["identity"] = str(home / "identity.pem")
    (folder / "spec.yaml").write_text(yaml.safe_dump(made))
    return made


PATH = f"{ROOT}:{sysconfig.get_paths()['purelib']}"


def others_run(python: str) -> bool:
    """Whether other users can run a Python with this package."""
    tried = ["setpriv", "--reuid", str(FIRST_USER), "--regid", str(GROUP), "--clear-groups", python]
    environment = {**os.environ, "PYTHONPATH": PATH}
    try:
        done = subprocess.run([*tried, "-c", "import dpdist.cli"], cwd="/", env=environment, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


class Users:
    """Commands of dpdist, as users of their own where that is possible."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, sys.executable
        self.isolated = os.geteuid() == 0 and shutil.which("setpriv") is not None
        runs = [python for python in (sys.executable, "/usr/bin/python3") if self.isolated and others_run(python)]
        if not runs:
            self.isolated = False
            return
        self.python = runs[0]
        for place in (folder, folder / "federation"):
            place.chmod(0o711)
        (folder / "spec.yaml").chmod(0o644)
        os.chown(folder / "box", 0, GROUP)
        (folder / "box").chmod(0o2770)
        for name, user in self.users.items():
            own(self.home(name), user)

    users = {name: FIRST_USER + number for number, name in enumerate((*NAMES, "coordinator"))}  # noqa: RUF012

    def home(self, name: str) -> Path:
        """The folder that is a user's alone."""
        return self.folder / name if name == "coordinator" else self.folder / "federation" / name

    def start(self, name: str, *command: str) -> subprocess.Popen[str]:
        """Start a command of a user."""
        run = [self.python, "-m", "dpdist", *command]
        if self.isolated:
            ids = ["--reuid", str(self.users[name]), "--regid", str(GROUP), "--clear-groups"]
            run = ["setpriv", *ids, *run]
        environment = {**os.environ, "PYTHONPATH": PATH, "HOME": str(self.home(name))}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(run, text=True, env=environment, cwd="/", umask=0o007, **pipes)

    def run(self, name: str, *command: str) -> str:
        """Run a command of a user; return what it says."""
        process = self.start(name, *command)
        said, _ = process.communicate()
        expect(process.returncode == 0, f"{name}: {said[-2000:]}")
        return said


def look(users: Users, spec: dict[str, Any]) -> None:
    """Nobody reads the folder of another."""
    for client in spec["federated"]["clients"] if users.isolated else ():
        for name in ("c1", "c8", "coordinator"):
            read = ["setpriv", "--reuid", str(users.users[name]), "--regid", str(GROUP), "--clear-groups", "cat"]
            tried = subprocess.run([*read, client["path"]], capture_output=True)
            expect((tried.returncode == 0) == (name == client["name"]), f"{name} and the file of {client['name']}")


def letters(folder: Path) -> dict[str, tuple[int, int]]:
    """Messages of each client with tables, and bytes of all."""
    found = {}
    for name in NAMES:
        own_files = [path for path in (folder / "box").rglob(f"*.{name}")]
        content = [path.read_bytes() for path in own_files]
        expect(not any(planted_name(n).encode() in text for text in content for n in NAMES), "records in the mailbox")
        found[name] = len(own_files) - 3, sum(map(len, content))
    return found


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mailbox", help="s3:// prefix; default: a folder")
    parser.add_argument("--endpoint", help="URL of the S3 server")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dpdist-mailbox-"))
    try:
        spec = prepare(folder, arguments)
        users, file = Users(folder), str(folder / "spec.yaml")
        print(
            f"==> eight clients by mailbox, {'each a user of its own' if users.isolated else 'all one user'}",
            flush=True,
        )
        look(users, spec)
        shown = users.run("c1", "join", file, "--client", "c1")
        sha = re.findall(r"--accept ([0-9a-f]{64})", shown)
        expect(len(sha) == 1, shown)
        clients = {name: users.start(name, "join", file, "--client", name, "--accept", sha[0]) for name in NAMES}
        start = time.perf_counter()
        users.run("coordinator", "release", file)
        seconds = time.perf_counter() - start
        for name, client in clients.items():
            said, _ = client.communicate()
            expect(client.returncode == 0 and said.rstrip().endswith("committed"), f"{name}: {said[-2000:]}")
        users.run("coordinator", "verify", spec["output"]["path"])
        ledgers(spec)
        if not arguments.mailbox:
            sent = letters(folder)
            expect(all(number <= MOST_MESSAGES and size <= MOST_BYTES for number, size in sent.values()), str(sent))
            print(f"messages with tables, and bytes of all: {sent}")
        print(f"released in {seconds:.0f} s")
    except BaseException:
        arguments.keep = True
        raise
    finally:
        print(f"files: {folder}") if arguments.keep else shutil.rmtree(folder)


if __name__ == "__main__":
    main()
