"""How the coordinator calls the clients of a federated release, and reads their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dpdist.cluster.worker_groups import Lost, WorkerGroups
from dpdist.errors import RoundFailed
from dpdist.families.base.attempt import Attempt
from dpdist.families.mixing.federated.client import ClientAnswer
from dpdist.families.mixing.federated.client_session import ClientSession
from dpdist.families.mixing.federated.plan import FederatedPlan
from dpdist.families.mixing.spec import MixingSpec

FederatedAttempt = Attempt[MixingSpec, FederatedPlan]


def session_of(attempt: FederatedAttempt, name: str) -> ClientSession:
    """What is sent to the workers of a client; without the coordinator's ledger, whose URL may hold a password."""
    spec, plan, key = attempt.spec, attempt.plan, attempt.key
    spec = spec.model_copy(update={"ledger": type(spec).model_fields["ledger"].default})
    return ClientSession(
        spec=spec,
        name=name,
        order=plan.order,
        sigma_over_clip=plan.sigma_over_clip,
        attempt=attempt.id,
        under_contract=attempt.contract is not None,
        test_key=hashlib.sha256(f"{key.uri} {name}".encode()).hexdigest() if key.is_fixed else "",
    )


@dataclass(frozen=True, eq=False)
class ClientCalls:
    """Calls of clients, each on its own workers."""

    attempt: FederatedAttempt  # the coordinator's
    groups: WorkerGroups  # the workers of each client

    def ask(
        self, task: Callable[..., ClientAnswer], names: Iterable[str], *args: Any
    ) -> dict[str, ClientAnswer | Lost]:
        """The answers of some clients."""
        told = {name: (session_of(self.attempt, name), *args) for name in names}
        answers: dict[str, ClientAnswer | Lost] = self.groups.call(f"client-{task.__name__}", task, told)
        return answers

    def each(
        self, stage: str, task: Callable[..., ClientAnswer], names: Iterable[str], *args: Any, fault: str
    ) -> dict[str, Any]:
        """The values of all clients of the round. Raises RoundFailed: a client gave none; the message ends with
        `fault`.
        """
        with self.attempt.stage(stage):
            answers = self.ask(task, names, *args)
        left_out: dict[str, str] = {}
        values = values_of(answers, left_out)
        if left_out:
            raise RoundFailed(f"client {reasons_of(left_out)} {fault}")
        return values


def values_of(answers: Mapping[str, ClientAnswer | Lost], left_out: dict[str, str]) -> dict[str, Any]:
    """The values that clients answered; `left_out` gets the reason of every other client."""
    for name, answer in answers.items():
        if not isinstance(answer, ClientAnswer) or answer.error:
            left_out[name] = error_of(answer)
    return {
        name: answer.value for name, answer in answers.items() if isinstance(answer, ClientAnswer) and not answer.error
    }


def reasons_of(left_out: Mapping[str, str]) -> str:
    """The clients that were left out, by reason."""
    whose: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        whose.setdefault(reason, []).append(repr(name))
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in whose.items())


def error_of(answer: Any) -> str:
    """Why an answer has no value, in printable characters."""
    if isinstance(answer, Lost):
        return answer.reason
    if not isinstance(answer, ClientAnswer) or not isinstance(answer.error, str):
        return "it sent something else than an answer"
    return "".join(letter if letter.isprintable() else "?" for letter in answer.error[:200])
