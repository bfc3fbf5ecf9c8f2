"""Estimators of scikit-learn, imported when the first is made."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, TypeAlias

Maker: TypeAlias = Callable[[int], Any]
"""A seed to an estimator."""


def estimator(path: str, **options: Any) -> Maker:
    """What makes an estimator of a class, ``module:class`` below `sklearn`, with some options."""
    return lambda seed: pkgutil.resolve_name(f"sklearn.{path}")(**options, random_state=seed)
