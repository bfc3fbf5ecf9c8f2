"""The spec of a call: a file, a mapping or a spec, with what the call sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdist.errors import SpecError
from dpdist.families.base.registry import build_spec, load_spec
from dpdist.spec.release import ReleaseSpec, change, override

AnySpecification = str | os.PathLike[str] | Mapping[str, Any] | ReleaseSpec
"""The path of a spec file, its settings as a mapping, or a spec that was read before."""


def specified(spec: AnySpecification, settings: Mapping[str, Any]) -> ReleaseSpec:
    """A spec with settings of the call, by dotted path, and the ledger that ``DPDIST_LEDGER`` names.

    Raises
    ------
    SpecError
        There is no such file, or it is no valid spec.
    """
    overrides = dict(settings)
    if "ledger" not in overrides and os.environ.get("DPDIST_LEDGER"):
        overrides["ledger"] = os.environ["DPDIST_LEDGER"]
    if isinstance(spec, ReleaseSpec):
        return change(spec, overrides) if overrides else spec
    if isinstance(spec, Mapping):
        tree = {name: dict(part) if isinstance(part, Mapping) else part for name, part in spec.items()}
        return build_spec(override(tree, overrides), base=Path.cwd())
    if isinstance(spec, str | os.PathLike):
        return load_spec(Path(spec), overrides)
    raise SpecError(f"spec: expected the path of a spec file or a mapping, got {type(spec).__name__}")
