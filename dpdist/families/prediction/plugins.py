"""A user's own first stage or regression, named ``module:function`` in the spec.

It runs with the rights of the release, on original rows: name only code you trust. A first stage is called as
``function(original, rng)`` with rows of the unit cube, float64[n, d], and returns as many rows in the unit cube. A
regression is called as ``function()`` and returns an object with ``fit(inputs, responses)`` and ``predict(inputs)``,
such as ``sklearn.ensemble:RandomForestRegressor``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from dpdist.errors import SpecError
from dpdist.privacy.arrays import Floats

PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
"""What a hook looks like, as a regular expression."""


def load(hook: str, *, setting: str) -> Callable[..., Any]:
    """The function that a hook names. Raises SpecError: there is no such module or function, or it cannot be called."""
    module, _, name = hook.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise SpecError(f"{setting}: there is no {hook!r}; give module:function, importable by every worker") from None
    if not callable(function):
        raise SpecError(f"{setting}: {hook!r} cannot be called")
    return function


def checked_rows(rows: object, like: Floats, *, setting: str) -> Floats:
    """What a user's first stage returned, if it is what was asked for. Raises SpecError: it has another shape, or
    values that are not finite; values outside the unit cube are moved to its faces.
    """
    out = np.asarray(rows, np.float64)
    if out.shape != like.shape or not np.all(np.isfinite(out)):
        raise SpecError(f"{setting}: it must return finite rows of the shape it was given")
    return np.clip(out, 0.0, 1.0)
