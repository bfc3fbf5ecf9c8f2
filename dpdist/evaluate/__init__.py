"""Is the guarantee true, and is the release useful? ``dpdist.evaluate(…)`` is `dpdist.api.evaluation.evaluate`."""

import sys

from dpdist import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
