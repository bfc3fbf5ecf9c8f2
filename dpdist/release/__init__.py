"""The life of a release: preflight, run, outcome, history. ``dpdist.release(…)`` is `dpdist.api.calls.release`."""

import sys

from dpdist import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
