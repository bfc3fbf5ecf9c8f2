"""The spec of a call: a file, a mapping or a spec, with what the call sets and the ledger of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdist.spec.reader import AnySpecification, load
from dpdist.spec.release import ReleaseSpec

__all__ = ["AnySpecification", "specified"]


def specified(spec: AnySpecification, settings: Mapping[str, Any]) -> ReleaseSpec:
    """A spec with settings of the call, by dotted path, and the ledger that ``DPDIST_LEDGER`` names.

    Raises
    ------
    SpecError
        There is no such file, or it is no valid spec.
    """
    url = os.environ.get("DPDIST_LEDGER")
    return load(spec, ({"ledger": url} if url else {}) | dict(settings), base=Path.cwd())
