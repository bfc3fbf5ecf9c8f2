"""The guides are true: their files are written, and their commands run on an invented table of the schema."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from commands import Command

from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "how-to"
SHORTER = {"evaluate": ["--help"]}
"""Options that make a command quick: what an evaluation does is tested elsewhere."""


def invented(attribute: Attribute, rows: int, rng: np.random.Generator) -> Any:
    """Values of an attribute, all equally likely."""
    if attribute.values is not None:
        return rng.choice(np.array(attribute.values), rows)
    assert attribute.bounds is not None
    low, high = attribute.bounds
    if attribute.kind == "integer":
        return rng.integers(int(low), int(high), rows, endpoint=True)
    return rng.uniform(low, high, rows)


def write_table(path: Path, schema: Path, unit: str | None, weight: str | None, rows: int = 5_500) -> None:
    rng = np.random.default_rng(1)
    columns = {a.name: invented(a, rows, rng) for a in Schema.from_yaml(schema).attributes}
    columns |= {} if unit is None else {unit: rng.integers(0, rows // 2, rows)}
    columns |= {} if weight is None else {weight: rng.integers(1, 800, rows)}
    frame = pd.DataFrame(columns)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)


def needed_tables(folder: Path) -> dict[str, tuple[str, str | None, str | None]]:
    """The tables that the files of a guide name, their schemas, columns of ids and columns of weights."""
    trees = [yaml.safe_load(file.read_text()) for file in folder.glob("*.yaml")]
    asked = [tree for tree in trees if isinstance(tree, dict) and {"data", "schema"} <= set(tree)]
    return {
        tree["data"]["path"]: (tree["schema"], tree.get("unit", {}).get("by"), tree.get("weight", {}).get("by"))
        for tree in asked
    }


@pytest.mark.parametrize("guide", ["schema", "hospital", "bank", "statistical-office"])
def test_the_files_and_commands_of_a_guide_work(guide: str, dpdist: Command, tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    blocks = re.findall(r"```(\w+)\n(.*?)```", (GUIDES / f"{guide}.md").read_text(), flags=re.DOTALL)
    for text in (text for language, text in blocks if language == "yaml"):
        name = re.match(r"# (\S+\.yaml)\n", text)
        assert name, text
        (tmp_path / name[1]).write_text(text)
    ran = []
    for line in "".join(text for language, text in blocks if language == "sh").splitlines():
        words = shlex.split(line, comments=True)
        target = words[words.index(">") + 1] if ">" in words else None
        arguments = words[1 : words.index(">")] if target else words[1:]
        if arguments[0] != "schema" or "--against" in arguments:
            for table, (schema, unit, weight) in needed_tables(tmp_path).items():
                if not (tmp_path / table).exists():
                    write_table(tmp_path / table, tmp_path / schema, unit, weight)
        answer = dpdist(*arguments, *SHORTER.get(arguments[0], ()))
        assert answer.code == 0, f"{line}\n{answer.err}"
        if target:
            (tmp_path / target).write_text(answer.out)
        ran.append(arguments[0])
    assert "release" in ran
