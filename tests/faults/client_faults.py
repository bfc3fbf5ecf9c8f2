"""Preload of a client's test worker: how a client lies. A file ``lie`` in the folder DPDIST_FAULTS says what it sends.

``shape``, ``nan``, ``huge``, ``foreign``, ``nothing``: what is no message of the round. ``again``: other noise each
time.
``forged``: signed with another key, as by a worker that took the client's resource without its identity.
"""

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdist.families.mixing.federated import stages as mixing
from dpdist.federated import session as client_session

_numbers = count()
# loaded twice
_plain = vars(mixing).setdefault("_plain", (mixing.noisy_steps, mixing.message_of, client_session.identity_of))
_plain_steps, _plain_message, _plain_identity = _plain


def _lie() -> str:
    try:
        return (Path(os.environ["DPDIST_FAULTS"]) / "lie").read_text()
    except FileNotFoundError:
        return ""


def _steps(*args: Any) -> Any:
    steps = _plain_steps(*args)
    match _lie():
        case "shape":
            return steps[:-1]
        case "nan":
            return np.full(steps.shape, np.nan)
        case "huge":
            return steps + (1 << 50)
        case "again":
            return steps + next(_numbers)
    return steps


def _message(*args: Any) -> Any:
    message = _plain_message(*args)
    match _lie():
        case "foreign":
            return replace(message, client="stranger")
        case "nothing":
            return {"steps": message.steps}
    return message


def _identity(session: Any) -> Any:
    return Ed25519PrivateKey.generate() if _lie() == "forged" else _plain_identity(session)


mixing.noisy_steps, mixing.message_of = _steps, _message
client_session.identity_of = _identity
