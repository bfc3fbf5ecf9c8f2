"""What a noisy pair table tells beyond what was known before it was measured.

Measured tables are shrunk towards the model that they were picked by, as far as they hold no more than noise: a weak
dependence that was picked by chance would otherwise be fitted as it was drawn. Strong ones stay as they are.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.families.synthesis.choices import EMPTY
from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import inner


def with_evidence(share: Floats, known: Floats, weight: float) -> Floats:
    """A noisy pair table, its dependence shrunk towards what was known.

    The margins of the change are kept: one-way tables and other pairs tell of them, too. Of the rest, the energy beyond
    that of the noise is taken for signal, and the part ``signal / (signal + noise)`` of the change is kept, as in a
    Wiener filter or by James and Stein. As noise counts what the fit would leave of it: a cell that expects less than
    the deviation of its noise cannot miss more, because the fit allows no negative counts.

    Parameters
    ----------
    share : ndarray of float64, shape (a, b)
        Noisy counts over the number of records.
    known : ndarray of float64, shape (a, b)
        What a public model expected before the table was first measured.
    weight : float
        One over the variance of a cell of `share`.
    """
    change = share - known
    dependence = change - change.mean(1, keepdims=True)
    dependence -= dependence.mean(0, keepdims=True)
    free = (share.shape[0] - 1) * (share.shape[1] - 1)
    if not free:
        return share
    flat = dependence.ravel()
    signal = max(weight * inner(flat, flat) - max(free - 2, 1), 0.0)
    felt = np.minimum(known.ravel() * math.sqrt(weight) + EMPTY, 1.0)
    noise = inner(felt, felt) * free / share.size
    return np.asarray(share - noise / (signal + noise) * dependence)
