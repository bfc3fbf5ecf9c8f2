"""What the package says of itself agrees with itself: version, citation, extras."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import yaml
from needs import left_out

import dpdist
from dpdist.publish.manifest import package_versions

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_that_of_the_citation_and_of_the_tag() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == dpdist.__version__
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        left_out("git", "apt-get install git, and clone the repository")
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(tags.stdout.split()) <= {f"v{dpdist.__version__}"}


def test_extras_are_locked() -> None:
    """All but the dashboard: with it every worker process takes a second longer to start, here as well."""
    locked = (ROOT / "requirements.lock").read_text()
    for name, extra in PROJECT["optional-dependencies"].items():
        for requirement in extra if name != "dashboard" else ():
            package = requirement.split("[")[0].split(">")[0].split("<")[0].lower()
            assert f"\n{package}==" in f"\n{locked}", requirement


def test_a_manifest_names_packages_that_dpdist_needs() -> None:
    needed = {requirement.split("[")[0].split(">")[0] for requirement in PROJECT["dependencies"]}
    assert set(package_versions()) - {"python", "dpdist"} <= needed
    assert "python-flint" in package_versions()
