"""The documents are true: their examples run, and the files, names and sections that they point to are there."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
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


def test_the_index_of_the_design_names_what_is_in_the_files() -> None:
    """In each row of *Where things are*, a name in backticks stands in one of the files of that row."""
    text = (ROOT / "docs" / "design.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) > 10
    for row in rows:
        words = re.findall(r"`([^`]+)`", row)
        roots = (ROOT, ROOT / "dpdist")
        files = [root / word for word in words for root in roots if word.endswith(".py") and (root / word).exists()]
        code = "\n".join(file.read_text() for file in files)
        for word in words:
            if re.fullmatch(r"[A-Za-z_]+(\.[A-Za-z_]+)*", word) and not word.endswith(".py"):
                assert re.search(rf"(def|class) {word.split('.')[-1]}\b", code), word


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
