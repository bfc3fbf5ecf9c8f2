"""Pods as local processes: exactly the command, arguments and environment of rendered objects.

What a kubelet does is done here: variables are filled in, ConfigMaps and secrets become files, a pod has an address of
its own (127.x.y.z), a Service's name leads to its pod. Paths of volumes are folders of the test; nothing else of a
command is changed.
"""

import base64
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forkserver

Manifest = dict[str, Any]


class Pods:
    """The pods of rendered objects, one after another.

    Parameters
    ----------
    manifests : list of dict
        Rendered objects, and the secrets they name.
    folder : Path
        For volumes and logs.
    """

    def __init__(self, manifests: list[Manifest], folder: Path) -> None:
        self.folder = folder
        self._objects = {(m["kind"], m["metadata"]["name"]): m for m in manifests}
        self._network = _free_network()
        self._services = {name: self._address(1) for kind, name in self._objects if kind == "Service"}
        self._running: list[subprocess.Popen[bytes]] = []
        self._count = 1

    def _address(self, number: int) -> str:
        return f"{self._network}.{number}"

    def start(self, deployment: str) -> None:
        """Start the pods of a Deployment, and wait until their startup probes succeed."""
        manifest = self._objects["Deployment", deployment]
        started = []
        for _ in range(manifest["spec"]["replicas"]):
            pod = self._pod(manifest, address=self._services.get(deployment))
            process = self._process(pod, self.folder / f"{deployment}-{len(self._running)}.log")
            self._running.append(process)
            started.append((pod, process))
        for pod, process in started:
            self._await(pod, process)

    def run(self, job: Manifest, *, seconds: float = 120) -> tuple[int, str]:
        """Run the pod of a Job (or of a CronJob's next one) to its end; its exit code and what it printed."""
        spec = job["spec"]["jobTemplate"]["spec"] if job["kind"] == "CronJob" else job["spec"]
        pod = self._pod({"metadata": job["metadata"], "spec": spec})
        log = self.folder / f"{job['metadata']['name']}-{self._count}.log"
        process = self._process(pod, log)
        self._running.append(process)
        process.wait(seconds)
        return process.returncode, log.read_text()

    def stop(self) -> None:
        """End everything that was started."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)

    def _pod(self, manifest: Manifest, *, address: str | None = None) -> Manifest:
        """What a kubelet makes of a pod template: command, environment, folders."""
        self._count += 1
        address = address or self._address(self._count)
        spec = manifest["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        root = self.folder / f"pod-{self._count}"
        paths = {
            mount["mountPath"]: self._volume(next(v for v in spec["volumes"] if v["name"] == mount["name"]), root)
            for mount in container["volumeMounts"]
        }
        environment: dict[str, str] = {}
        for variable in container["env"]:
            environment[variable["name"]] = self._value(variable, environment, address)

        mounts = "|".join(sorted(paths, key=len, reverse=True))
        mounted = re.compile(rf"(?<![\w/.])({mounts})(?=$|[/\"])")

        def local(text: str) -> str:
            text = _expanded(text, environment)
            for name, target in self._services.items():
                text = re.sub(rf"(?<=[/@]){name}(?=:)", target, text)
            text = text.replace("127.0.0.1:", f"{address}:")  # the loopback of a pod is its own
            return mounted.sub(lambda found: str(paths[found[0]]), text)

        secret = {v["name"] for v in container["env"] if "secretKeyRef" in v.get("valueFrom", {})}
        environment = {name: value if name in secret else local(value) for name, value in environment.items()}
        probe = container.get("startupProbe", {}).get("exec", {}).get("command", [])
        return {
            "command": [local(text) for text in (*container["command"], *container.get("args", []))],
            "environment": environment,
            "probe": [local(text) for text in probe],
        }

    def _volume(self, volume: Manifest, root: Path) -> Path:
        folder = root / str(volume["name"])
        folder.mkdir(parents=True)
        if "configMap" in volume:
            for name, text in self._objects["ConfigMap", volume["configMap"]["name"]]["data"].items():
                (folder / name).write_text(text)
        for source in volume.get("projected", {}).get("sources", []):
            data = self._objects["Secret", source["secret"]["name"]]["data"]
            for item in source["secret"]["items"]:
                path = folder / str(item["path"])
                path.write_bytes(base64.b64decode(data[item["key"]]))
                path.chmod(0o400)
        return folder

    def _value(self, variable: Manifest, before: dict[str, str], address: str) -> str:
        if "value" in variable:
            return _expanded(variable["value"], before)
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            return base64.b64decode(self._objects["Secret", reference["name"]]["data"][reference["key"]]).decode()
        assert source == {"fieldRef": {"fieldPath": "status.podIP"}}
        return address

    def _process(self, pod: Manifest, log: Path) -> subprocess.Popen[bytes]:
        """A process with the environment of the manifest, and of the image: its PATH."""
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        with log.open("wb") as output:
            return forkserver.command(
                pod["command"],
                env={"PATH": path, "LANG": "C.UTF-8", **pod["environment"]},
                stdout=output,
                stderr=output,
                cwd=log.parent,
                start_new_session=True,
            )

    def _await(self, pod: Manifest, process: subprocess.Popen[bytes]) -> None:
        environment = {**pod["environment"], "PATH": str(Path(sys.executable).parent)}
        deadline = time.monotonic() + 90
        while subprocess.run(pod["probe"], env=environment, capture_output=True).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
                raise RuntimeError(f"{pod['command'][:2]} did not start:\n{logs}")
            time.sleep(0.5)


def _expanded(text: str, environment: dict[str, str]) -> str:
    """``$(NAME)`` filled in, ``$$(`` as ``$(``: the kubelet's rules."""
    return re.sub(
        r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]), text
    )


def _free_network() -> str:
    """The beginning of addresses 127.x.y on which nobody listens at a port of ours."""
    while True:
        network = f"127.{random.randrange(1, 255)}.{random.randrange(255)}"
        with socket.socket() as probe:
            if probe.connect_ex((f"{network}.1", 8786)):
                return network
