"""Processes of the end-to-end run: started, waited for, stopped; all on 127.0.0.1, all below one folder."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.request import urlopen

import psutil

ROOT = Path(__file__).parents[2]
SERVERS = ROOT / "tests" / "servers"
PACKAGES = {"initdb": ["postgresql"], "radosgw": ["ceph-mon", "ceph-osd", "radosgw", "ceph-common"]}


def install_missing() -> None:
    """Install PostgreSQL and Ceph where they are missing (Debian, as root)."""
    there = {
        "initdb": bool(list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb")),
        "radosgw": bool(shutil.which("radosgw") and shutil.which("ceph-osd")),
    }
    missing = [package for program, found in there.items() if not found for package in PACKAGES[program]]
    if missing:
        quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
        apt = ["apt-get", "-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300"]
        subprocess.run([*apt, "update", "-qq"], check=True, **quiet)
        subprocess.run([*apt, "install", "-y", "-qq", "--no-install-recommends", *missing], check=True, **quiet)


class Processes:
    """Long-running processes with their logs, ended in reverse order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._scripts: list[tuple[Path, str]] = []

    def start(
        self, name: str, *command: str | Path, module: str = "", changes: Mapping[str, str | None] | None = None
    ) -> None:
        """Start a program, or a Python module, with its log in ``NAME.log`` and changes of its environment."""
        environment = {**self.environment, **(changes or {})}
        line = [sys.executable, "-m", module, *command] if module else list(command)
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                line,
                env={name: value for name, value in environment.items() if value is not None},
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )

    def script(self, name: str) -> Callable[[], dict[str, str]]:
        """Start a server by its script in the background; call the answer for what it prints."""
        path = SERVERS / f"{name}.sh"
        process = subprocess.Popen([path, "start"], stdout=subprocess.PIPE, text=True)

        def fields() -> dict[str, str]:
            output, _ = process.communicate(timeout=180)
            if process.returncode:
                raise RuntimeError(f"{path} failed")
            found = dict(part.split("=", 1) for part in output.split())
            self._scripts.append((path, found["dir"]))
            return found

        return fields

    def run(self, *command: str | Path, module: str = "dpdist", check: bool = True) -> str:
        """Run a Python module to its end and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", module, *command], env=self.environment, capture_output=True, text=True, cwd=ROOT
        )
        if check and done.returncode:
            raise RuntimeError(f"{module} {' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def children(self, name: str) -> list[psutil.Process]:
        """The processes that a process has started."""
        return psutil.Process(self._running[name].pid).children(recursive=True)

    def alive(self) -> None:
        """Raise if a process has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended:\n" + (self.folder / f"{name}.log").read_text()[-3000:])

    def end(self, name: str) -> None:
        """End a process, and wait for that."""
        process = self._running.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)

    def stop(self) -> None:
        """End everything that this object started."""
        for process in reversed(self._running.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 5
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for path, folder in self._scripts:
            subprocess.run([path, "stop", folder], check=False)


def wait_for(
    what: str, ready: Callable[[], object], *, seconds: float, alive: Callable[[], None], every: float = 0.1
) -> None:
    """Wait until something is there, while all processes live; ask each time this many seconds have passed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not there after {seconds:.0f} s")
        alive()
        time.sleep(every)


def answers(url: str) -> Callable[[], bool]:
    """Whether an address answers a GET."""

    def ask() -> bool:
        with urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)

    return ask
