"""A user's own function or class, named ``module:function`` in the spec.

It runs with the rights of the release, on original records: name only code you trust.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dpdist.errors import SpecError

PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
"""What a hook looks like, as a regular expression."""


def named(hook: Any) -> Any:
    """A class or function as ``module:name``, which a spec made in Python may give instead; other values unchanged."""
    return f"{hook.__module__}:{hook.__qualname__}" if callable(hook) else hook


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
