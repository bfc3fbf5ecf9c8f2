"""What the package says of itself agrees with itself: version, citation, extras."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
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


def test_the_wheel_brings_flows_and_examples(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    names = set(zipfile.ZipFile(wheel).namelist())
    own = {f"dpdist/flows/{path.name}" for path in (ROOT / "flows").glob("*.py")}
    own |= {
        f"dpdist/examples/{p.relative_to(ROOT / 'deploy/releases')}"
        for p in (ROOT / "deploy").rglob("releases/**/*.yaml")
    }
    assert own <= names
    about = zipfile.ZipFile(wheel).read(f"dpdist-{dpdist.__version__}.dist-info/METADATA").decode()
    links = re.findall(r"\]\((.*?)\)", about)
    assert links
    assert all("://" in link for link in links), "a package index shows the README, too"
    assert {name.split("/")[0] for name in names} == {"dpdist", f"dpdist-{dpdist.__version__}.dist-info"}
    shutil.unpack_archive(wheel, tmp_path / "there", "zip")
    seen = "import dpdist.flows, dpdist.cli.schema as e, sys; print(e._examples(), dpdist.flows.__path__)"
    done = subprocess.run(
        [sys.executable, "-c", seen], cwd=tmp_path / "there", capture_output=True, text=True, check=True
    )
    assert done.stdout.count("there/dpdist/") == 2
    assert not any(
        "flows." in line
        for p in (ROOT / "flows").glob("*.py")
        for line in re.findall("^from (.*) import", p.read_text(), re.M)
    )


def test_a_manifest_names_packages_that_dpdist_needs() -> None:
    needed = {requirement.split("[")[0].split(">")[0] for requirement in PROJECT["dependencies"]}
    assert set(package_versions()) - {"python", "dpdist"} <= needed
    assert "python-flint" in package_versions()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """At any depth, so each module can be imported first."""
    graph = grimp.build_graph("dpdist", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 300
    TopologicalSorter(imports).prepare()  # raises CycleError
    imports["dpdist.errors"].add("dpdist.cli.commands")
    with pytest.raises(CycleError):
        TopologicalSorter(imports).prepare()
