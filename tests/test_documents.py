"""The documents are true: their examples run, and the files, names and sections that they point to are there."""

import doctest
import importlib
import importlib.util
import re
import sys
from json import loads as load_json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mixture import BLOCKS

from dpdist.cli.schema import json_schema_of
from dpdist.families.base.registry import FAMILIES
from dpdist.spec.strict_yaml import load_yaml

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def test_the_family_of_the_worked_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "adding-a-family.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    try:
        for block in blocks:
            exec(compile(block, "adding-a-family.md", "exec", dont_inherit=True), names)  # noqa: S102  the documents are ours
    finally:
        FAMILIES.pop("tally", None)
    assert names["outcome"].guarantee.startswith("(0.5, 0)-differential privacy")
    assert 850 < names["table"].num_rows < 1_150  # 1,000 records and the noise of three counts


def test_the_first_block_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec", dont_inherit=True), names)  # noqa: S102  the documents are ours
    assert names["release"].guarantee.startswith("(1, 1e-9)-differential privacy for the whole release")
    assert len(names["release"]) == 90_000
    kinds = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert set(kinds) == set(FAMILIES)


def test_the_tutorial_for_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, "python.md", "exec", dont_inherit=True), names)  # noqa: S102  the documents are ours
    assert len(names["ledger"].show("people").attempts) == 3


def test_the_model_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("own_model_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in BLOCKS:
        exec(compile(block, "own-model.md", "exec", dont_inherit=True), vars(module))  # noqa: S102  the documents are ours
    assert len(module.release) == 2_000
    assert "if its model is as declared" in module.release.guarantee


EXAMPLES = [path for path in sorted((ROOT / "dpdist").rglob("*.py")) if "\n    >>> " in path.read_text()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_docstrings_run(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize(
    ("name", "lines"), [("README.md", 70), ("docs/benchmarks.md", 250), ("docs/known-limits.md", 60)]
)
def test_pages_that_newcomers_read_are_short(name: str, lines: int) -> None:
    assert (ROOT / name).read_text().count("\n") <= lines


@documents
def test_headings_of_a_page_differ(document: Path) -> None:
    headings = re.findall(r"^## (.+)$", _prose(document), flags=re.MULTILINE)
    assert len(set(headings)) == len(headings), "a link to the second leads to the first"


def test_the_navigation_of_the_site_has_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in text, page


@documents
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if "://" in target:
            continue
        name, _, section = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), target
        if section:
            assert section in _sections(file), target


@documents
def test_files_that_are_named_are_there(document: Path) -> None:
    """Paths from the root, from the package or from the families: ``privacy/noise.py``, ``tests/pods.py``."""
    roots = (ROOT, ROOT / "dpdist", ROOT / "dpdist" / "families", ROOT / "docs", document.parent)
    for path in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|yaml|sh|svg))(?::[\w.]+)?`", _prose(document)):
        if not path.startswith(("work/", "tls/", "data/")):
            assert any((root / path).exists() for root in roots), path


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """The script that makes the tables of benchmarks.md."""
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_benchmarks_are_those_of_the_results(figures: ModuleType) -> None:
    text = figures.PAGE.read_text()
    assert figures.rendered(text) == text, "python docs/figures.py"
    assert set(re.findall(r"<!-- table (\w+) -->", text)) == set(figures.TABLES)
    for shown in re.findall(
        r"^\|.*$", re.sub(r"<!-- table .*?<!-- end -->", "", text, flags=re.DOTALL), flags=re.MULTILINE
    ):
        pytest.fail(f"a table without results: {shown}")


@pytest.mark.parametrize("name", ["docs/benchmarks.md", "docs/decisions/0011-defaults.md"])
def test_decimal_figures_come_from_the_results(name: str) -> None:
    results = "\n".join(path.read_text() for path in (ROOT / "tests" / "benchmarks" / "results").glob("*.json"))
    prose = re.sub(r"`[^`]*`|<!-- table .*?<!-- end -->|\]\([^)]*\)", "", _prose(ROOT / name), flags=re.DOTALL)
    for figure in re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", prose):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", results), figure


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_results_name_machine_version_and_command(path: Path) -> None:
    content = load_json(path.read_text())
    assert content["version"]
    for table in content["tables"].values():
        assert table["machine"]
        scripts = re.findall(r"tests/benchmarks/[\w/]+\.py", table["command"])
        assert all((ROOT / script).exists() for script in scripts), table["command"]
        assert scripts or table["command"].startswith("make ")
        assert len(set(table["columns"])) == len(table["columns"])
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def _prose(document: Path) -> str:
    """The text of a document without its blocks of code."""
    return re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)


def _sections(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading.lower()).replace(" ", "-") for heading in headings}


SHIPPED = {"releases": "spec", "releases/schemas": "schema", "contracts": "contract"}


@pytest.mark.parametrize(("folder", "kind"), SHIPPED.items())
def test_shipped_files_name_the_json_schema_that_admits_them(folder: str, kind: str) -> None:
    tree = json_schema_of(kind)
    files = sorted((ROOT / "deploy" / folder).glob("*.yaml"))
    assert files
    for file in files:
        assert file.read_text().startswith(f"# yaml-language-server: $schema={tree['$id']}\n"), file
        Draft202012Validator(tree).validate(load_yaml(file))
