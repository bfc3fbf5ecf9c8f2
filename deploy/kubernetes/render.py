"""Render the chart's examples to plain manifests, for those without Helm, and its values to a README.

    python deploy/kubernetes/render.py           write them
    python deploy/kubernetes/render.py --check   say which are out of step (exit code 1)

Needs `make tools`: Helm's own code, as a Python package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
HEADER = """\
# Made from helm/dpdist/examples/{name}.yaml by deploy/kubernetes/render.py (make manifests); not to be edited here.
# Change image, buckets and spec to yours, then: kubectl apply --namespace dpdist --filename {name}.yaml
# A Job, and a cluster of the Dask operator, cannot be changed once they are there: delete them before the next apply.
"""


README = ROOT / "helm" / "dpdist" / "README.md"
ABOUT = """\
# dpdist

Releases with a privacy guarantee as batch jobs on Kubernetes, on a Dask cluster with TLS that the chart brings. The
guide is [docs/how-to/kubernetes.md](../../docs/how-to/kubernetes.md); [examples](examples) has values for each mode.
`helm test` asks in a pod of each kind what it reaches and what it must not.

This page is made from `values.yaml` by `make manifests`.

| value | default | meaning |
|---|---|---|
"""


def readme() -> str:
    """A table of all values: key, default and the comment above it."""
    lines = (ROOT / "helm" / "dpdist" / "values.yaml").read_text().splitlines()
    path: list[str] = []
    words: list[str] = []
    rows = []
    for line in lines:
        text = line.strip()
        if text.startswith("# -- "):
            words = [text.removeprefix("# -- ")]
        elif text.startswith("#"):
            words += [text.removeprefix("#").strip()] if words else []
        elif key := re.match(r"( *)([A-Za-z]+):(.*)", line):
            depth = len(key[1]) // 2
            path = [*path[:depth], key[2]]
            default = key[3].split("  #")[0].strip()
            if default or words:
                shown = f"`{default}`" if default else ""
                rows.append(f"| `{'.'.join(path)}` | {shown} | {' '.join(words).replace('|', '&#124;')} |")
            words = []
        else:
            words = []
    return ABOUT + "\n".join(rows) + "\n"


def rendered() -> dict[Path, str]:
    """The text of each file."""
    sys.path.insert(0, str(ROOT / "tests"))
    from charts import EXAMPLES, example, need_tools, render

    need_tools()
    files = {HERE / f"{name}.yaml": HEADER.format(name=name) + render(example(name)).text.lstrip() for name in EXAMPLES}
    return {**files, README: readme()}


def stale() -> list[Path]:
    """Files that are missing, differ from the chart, or have no example any more."""
    files = rendered()
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    return wrong + sorted(set(HERE.glob("*.yaml")) - set(files))


if __name__ == "__main__":
    if "--check" in sys.argv:
        behind = stale()
        sys.exit(f"out of step with the chart: {', '.join(p.name for p in behind)}; make manifests" if behind else 0)
    for file, content in rendered().items():
        file.write_text(content)
