"""The chart as Helm renders it: Helm's own code (a wheel in .tools, see `make tools`), no cluster, no network."""

import copy
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from needs import left_out

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "dpdist"
TOOLS = Path(os.environ.get("DPDIST_TOOLS", ROOT / ".tools"))
EXAMPLES = sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))
RELEASE, NAMESPACE = "acs", "dpdist"

Manifest = dict[str, Any]


def need_tools() -> None:
    """Let the tools be imported."""
    if not (TOOLS / "helm_python").is_dir():
        left_out("Helm", "make tools")
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))


def merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Values with changes, section by section."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = copy.deepcopy(value)
    return values


def example(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The values of an example, with the spec and the schema that its user would give by --set-file."""
    values = yaml.load((CHART / "examples" / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    if values.get("mode") == "workers":  # they release nothing
        return merge(values, changes or {})
    releases = ROOT / "deploy" / "releases"
    spec, schema = (releases / "acs2024-whole.yaml").read_text(), "acs2024"
    if isinstance(named := yaml.safe_load(values["release"]["spec"])["schema"], str):
        spec, schema = values["release"]["spec"], Path(named).stem
    files = {"spec": spec, "schema": (releases / "schemas" / f"{schema}.yaml").read_text()}
    return merge(merge(values, {"release": files}), changes or {})


@dataclass(frozen=True)
class Rendered:
    """What ``helm install --dry-run`` says."""

    text: str
    notes: str

    @cached_property
    def manifests(self) -> list[Manifest]:
        """All objects."""
        return [manifest for manifest in yaml.load_all(self.text, yaml.CSafeLoader) if manifest]

    def all(self, kind: str) -> list[Manifest]:
        """Objects of a kind."""
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str, name: str = "") -> Manifest:
        """The object of a kind whose name ends like this."""
        (found,) = [m for m in self.all(kind) if m["metadata"]["name"].endswith(name)]
        return found


def render(
    values: dict[str, Any], *, release: str = RELEASE, namespace: str = NAMESPACE, path: Path = CHART
) -> Rendered:
    """Render the chart.

    Raises
    ------
    RuntimeError
        Helm refuses, with its message.
    """
    import helm_python

    with helm_python.Chart.load(path) as chart, helm_python.Config(namespace=namespace) as config:
        try:
            made = config.install(chart, release, values, dry_run="client")
        except helm_python.HelmError as error:
            raise RuntimeError(str(error)) from None
    return Rendered(made["manifest"], made["notes"])


def lint(values: dict[str, Any]) -> list[str]:
    """What ``helm lint --strict`` has to say."""
    import helm_python

    report = helm_python.lint(CHART, values, strict=True)
    found: list[str] = [f"{m['path']}: {m['error']}" for m in report["messages"]]
    return found + [str(error) for error in report["errors"]]


def pod_specs(rendered: Rendered) -> list[tuple[str, Manifest]]:
    """All pods that objects describe, with a name each; those in a Prefect work pool's template too."""
    import json

    found: list[tuple[str, Manifest]] = []
    for manifest in rendered.manifests:
        kind, name, spec = manifest["kind"], manifest["metadata"]["name"], manifest.get("spec", {})
        if kind in ("Job", "Deployment"):
            found.append((f"{kind} {name}", spec["template"]))
        elif kind == "CronJob":
            found.append((f"{kind} {name}", spec["jobTemplate"]["spec"]["template"]))
        elif kind == "DaskCluster":
            found += [(f"{name} {role}", spec[role]) for role in ("scheduler", "worker")]
        elif kind == "DaskWorkerGroup":
            found.append((f"{kind} {name}", spec["worker"]))
        elif kind == "ConfigMap" and "base-job-template.json" in manifest["data"]:
            job = json.loads(manifest["data"]["base-job-template.json"])["job_configuration"]["job_manifest"]
            found.append((f"work pool {name}", job["spec"]["template"]))
    return found
