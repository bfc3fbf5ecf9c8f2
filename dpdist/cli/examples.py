"""``dpdist examples``: specs and schemas that are ready to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.shared import say
from dpdist.errors import OutputExists, SpecError, meant
from dpdist.privacy.formatting import folded

_PACKAGE = Path(__file__).parents[1]


def _folder() -> Path:
    """Where the examples are: in the wheel, or in the clone."""
    return next(place for place in (_PACKAGE / "examples", _PACKAGE.parent / "deploy/releases") if place.is_dir())


def examples(
    name: Annotated[str | None, typer.Argument(help="An example to copy; default: list them.")] = None,
    to: Annotated[Path, typer.Option(help="Folder to copy it to.")] = Path(),
) -> None:
    """List example specs, or copy one with its schema."""
    found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_folder().glob("*.yaml"))}
    if name is None:
        width = max(map(len, found))
        for one, text in found.items():
            about = " ".join(line.strip("# ") for line in text.splitlines()[1:4] if line.startswith("#"))
            say(folded(f"{one:<{width}}  {about.partition('. ')[0].rstrip('.')}"))
        return
    if name not in found:
        raise SpecError(f"there is no example {name!r}{meant(name, found)}")
    schema = re.search(r"^schema: (\S+)$", found[name], re.MULTILINE)
    for file in (f"{name}.yaml", *([schema[1]] if schema else [])):
        target = to / file
        if target.exists():
            raise OutputExists(f"{target} exists: choose another --to")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((_folder() / file).read_bytes())
        say(str(target))
