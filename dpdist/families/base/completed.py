"""A spec file with settings that were found for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpdist.errors import SpecError
from dpdist.spec.overrides import override, parse_overrides
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.strict_yaml import load_yaml, write_yaml


def write_completed(
    path: Path, spec: ReleaseSpec, found: Mapping[str, Any], *, source: Path, settings: Iterable[str], title: str
) -> None:
    """Write the source file with the overrides it was given and what was found, by dotted path, below a title. Raises
    SpecError: the source cannot be read, or the path cannot be written.
    """
    tree = load_yaml(source)
    schema: Any = tree["schema"]
    if isinstance(schema, str) and path.resolve().parent != source.resolve().parent:
        schema = spec.table.model_dump(mode="json")
    tree = override(tree, parse_overrides(settings) | dict(found)) | {"schema": schema}
    text = write_yaml(tree, flow=True)
    try:
        path.write_text("".join(f"# {line}\n" for line in title.splitlines()) + text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}") from None
