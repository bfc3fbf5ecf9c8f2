"""Release data about people with a privacy guarantee you can state in one sentence.

The public names are imported when they are used::

    ledger = dpdist.Ledger("sqlite:///ledger.db")
    ledger.create("census", epsilon=4, delta=1e-8)
    dpdist.plan("census.yaml", data=frame)
    release = dpdist.release("census.yaml", data=frame, ledger=ledger)
    release.to_pandas()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpdist.api.calls import open_release, open_series, plan, release, verify
    from dpdist.api.evaluation import evaluate
    from dpdist.api.ledger import Ledger
    from dpdist.api.synthesizer import Synthesizer
    from dpdist.spec.schema import Schema

__version__ = "0.1.0"

_MODULES = {
    "Ledger": "dpdist.api.ledger",
    "evaluate": "dpdist.api.evaluation",
    "Schema": "dpdist.spec.schema",
    "Synthesizer": "dpdist.api.synthesizer",
    **dict.fromkeys(("open_release", "open_series", "plan", "release", "verify"), "dpdist.api.calls"),
}

__all__ = [
    "Ledger",
    "Schema",
    "Synthesizer",
    "errors",
    "evaluate",
    "open_release",
    "open_series",
    "plan",
    "release",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}") if name == "errors" else getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
