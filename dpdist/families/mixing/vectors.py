"""Mixtures as vectors, beside real records: what an evaluation compares them with."""

from __future__ import annotations

from functools import partial

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.base.family import AsReleased
from dpdist.families.mixing.plan import plan
from dpdist.families.mixing.scaling import Encoding
from dpdist.families.mixing.spec import MixingSpec
from dpdist.privacy.arrays import Codes
from dpdist.publish.manifest import Manifest


def as_released(manifest: Manifest, spec: MixingSpec | None) -> AsReleased | None:
    """How real records become vectors like the released ones; None where the release holds records. Raises SpecError:
    the spec is not given, is not that of the release, or scales by moments that are not public.
    """
    settings = manifest.spec.get("mixing")
    if not isinstance(settings, dict) or settings.get("release") != "vectors":
        return None
    if spec is None:
        raise SpecError("a release of vectors is compared by means of its spec, which holds the schema: give --spec")
    if spec.kind != manifest.kind or spec.mixing.scaling != "bounds":
        raise SpecError("--spec: expected the mixing spec of this release, with mixing.scaling: bounds")
    return spec.table, partial(_vectors, plan(spec).encoding, spec.table.names.index(spec.label.name))


def _vectors(encoding: Encoding, label: int, codes: Codes) -> Codes:
    """A column for each coordinate, and the class."""
    rows = encoding.encode([column for place, column in enumerate(codes) if place != label])
    return [*np.ascontiguousarray(rows.T, np.float64), codes[label]]
