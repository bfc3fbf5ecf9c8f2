"""Ball arithmetic (Arb): numbers with a certain bound of their error, and the working precision they are computed at.

A comparison of balls is true only where it holds for every number in them. Where balls overlap, neither ``a <= b`` nor
``a > b`` is true.

References
----------
.. [1] Johansson, *Arb: efficient arbitrary-precision midpoint-radius interval arithmetic*, 2017.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flint import arb

_precision = Lock()  # Arb's working precision is one setting for the whole process

# A process forked while another thread computes would wait for ever for that thread, which it does not have.
os.register_at_fork(before=_precision.acquire, after_in_parent=_precision.release, after_in_child=_precision.release)


@contextmanager
def working_precision(bits: int) -> Iterator[None]:
    """Compute with so many bits; one thread at a time does, and it does not ask again inside."""
    from flint import ctx

    with _precision, ctx.workprec(bits):
        yield


def ball(value: Fraction | float | int) -> arb:
    """The number, exactly or within the working precision."""
    from flint import arb, fmpq

    exact = Fraction(value)
    return arb(fmpq(exact.numerator, exact.denominator))
