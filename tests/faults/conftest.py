"""The ledgers of ``tests/privacy``."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("ledger_fixtures", Path(__file__).parents[1] / "privacy" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_module = module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)

postgres_server = _module.postgres_server
postgres_url = _module.postgres_url
ledger_url = _module.ledger_url
_own_keys = _module._own_keys
