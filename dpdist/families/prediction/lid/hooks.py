"""Stages of the user's own: how they are called, and a rehearsal of each on made-up rows.

A first stage is a function ``draw(original, rng)``. It is given inputs that are synthesised, float64[n, d] on the unit
interval (categories and integers at the middle of their cell), of one party and block, and a `numpy.random.Generator`
keyed by the attempt. It returns as many synthetic rows, float64[n, d]; what lies beyond the unit interval is moved to
its ends. A regression is a class whose instances have ``fit(features, responses)`` and ``predict(features)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.prediction.lid.method import Block, Method
from dpdist.families.prediction.lid.regression import Features, fit_hook, predicted
from dpdist.privacy.arrays import Floats
from dpdist.spec.kinds import load_hook

FIRST_STAGE, REGRESSION = "prediction.first_stage", "prediction.regression.hook"

_ROWS = 40  # made up


def own_rows(hook: str, original: Floats, rng: np.random.Generator) -> Floats:
    """Synthetic rows of a user's first stage. Raises SpecError: they have another shape, or are not finite."""
    return checked_rows(load_hook(hook, setting=FIRST_STAGE)(original.copy(), rng), original, setting=FIRST_STAGE)


def checked_rows(rows: object, like: Floats, *, setting: str) -> Floats:
    """What a user's first stage returned, on the unit cube. Raises SpecError: another shape, or not finite."""
    out = np.asarray(rows, np.float64)
    if out.shape != like.shape or not np.all(np.isfinite(out)):
        raise SpecError(f"{setting}: it must return finite rows of the shape it was given")
    return np.clip(out, 0.0, 1.0)


def rehearse_hooks(method: Method) -> None:
    """Call the user's own stages on made-up rows. Raises SpecError: one is not found, takes other arguments, fails, or
    returns something else.
    """
    rng, own = np.random.default_rng(0), ":" in method.first_stage
    block: Block = rng.random((_ROWS, len(method.scales))), rng.random(_ROWS)
    if own:
        _takes(load_hook(method.first_stage, setting=FIRST_STAGE), FIRST_STAGE, "original, rng")
        with _failing(FIRST_STAGE):
            own_rows(method.first_stage, block[0][:, list(method.made)], rng)
    if method.regression.hook is not None:
        _takes(load_hook(method.regression.hook, setting=REGRESSION), REGRESSION, "")
        features = Features(method.scales, np.ones(len(method.scales)), method.classes)
        with _failing(REGRESSION):
            predicted(fit_hook(method.regression.hook, features, [block]), features, block[0])


def _takes(hook: Callable[..., Any], setting: str, arguments: str) -> None:
    try:
        inspect.signature(hook).bind(*filter(None, arguments.split(", ")))
    except TypeError:
        raise SpecError(f"{setting}: it must be callable as {hook.__name__}({arguments})") from None
    except ValueError:  # compiled code states no signature
        return


@contextmanager
def _failing(setting: str) -> Iterator[None]:
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{setting}: on {_ROWS} made-up rows it failed with {type(error).__name__}: {error}") from error
