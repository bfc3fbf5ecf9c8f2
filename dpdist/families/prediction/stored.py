"""What the steps of a two-stage release store once and read back, as files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dpdist.families.prediction.density import Marginal
from dpdist.families.prediction.kernels import Kernel
from dpdist.families.prediction.latin import Target
from dpdist.families.prediction.lid.method import Method
from dpdist.families.prediction.lid.ridge import Tuning
from dpdist.privacy.arrays import Counts, Floats


def arrays_bytes(arrays: Iterable[Counts] | Iterable[Floats]) -> bytes:
    """Arrays as a file."""
    buffer = io.BytesIO()
    np.savez(buffer, *arrays)
    return buffer.getvalue()


def arrays_of_bytes(content: bytes) -> list[Counts]:
    """The arrays that `arrays_bytes` wrote."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return [stored[f"arr_{i}"] for i in range(len(stored.files))]


def target_bytes(marginals: tuple[Marginal, ...], target: Target) -> bytes:
    """Marginals of all inputs and the correlation of those that are synthesised, as a file."""
    heads = np.array([[marginal.discrete, marginal.bandwidth] for marginal in marginals], np.float64)
    return arrays_bytes([target.correlation, heads, *(marginal.cumulative for marginal in marginals)])


def target_of_bytes(content: bytes, method: Method) -> tuple[tuple[Marginal, ...], Target]:
    """What `target_bytes` wrote."""
    correlation, heads, *cumulative = arrays_of_bytes(content)
    marginals = tuple(
        Marginal(np.asarray(array, np.float64), bool(discrete), float(bandwidth))
        for array, (discrete, bandwidth) in zip(cumulative, heads, strict=True)
    )
    return marginals, Target(tuple(marginals[i] for i in method.made), np.asarray(correlation, np.float64))


def tuning_bytes(tuning: Tuning) -> bytes:
    """Width and penalty as a file."""
    error = None if np.isnan(tuning.error) else tuning.error
    return json.dumps(
        {"kernel": tuning.kernel.name, "width": tuning.kernel.width, "penalty": tuning.penalty, "error": error}
    ).encode()


def tuning_of_bytes(content: bytes) -> Tuning:
    """What `tuning_bytes` wrote."""
    stored: Mapping[str, Any] = json.loads(content)
    error = float("nan") if stored["error"] is None else stored["error"]
    return Tuning(kernel=Kernel(name=stored["kernel"], width=stored["width"]), penalty=stored["penalty"], error=error)
