"""Asking the clients of a federated release, and telling what is wrong with their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dpdist.cluster.worker_groups import Lost, Places
from dpdist.errors import RoundFailed, SpecError
from dpdist.families.attempt import Context
from dpdist.families.mixing.federated.client import Answer
from dpdist.families.mixing.federated.client_session import Seat
from dpdist.families.mixing.federated.plan import FederatedPlan
from dpdist.families.mixing.spec import MixingSpec


def seat_of(context: Context, name: str) -> Seat:
    """What the workers of a client are told: not the coordinator's ledger, whose URL may hold a password."""
    spec, plan = federated_of(context)
    spec = spec.model_copy(update={"ledger": type(spec).model_fields["ledger"].default})
    test_key = hashlib.sha256(f"{context.key.uri} {name}".encode()).hexdigest() if context.key.is_fixed else ""
    return Seat(
        spec=spec,
        name=name,
        order=plan.order,
        sigma_over_clip=plan.sigma_over_clip,
        attempt=context.attempt,
        test_key=test_key,
    )


def ask(
    context: Context, what: str, task: Callable[..., Answer], names: Iterable[str], *args: Any
) -> dict[str, Answer | Lost]:
    """The answers of some clients."""
    places: Places = context.results["places"]
    answers: dict[str, Answer | Lost] = places.call(
        f"client-{what}", task, {name: (seat_of(context, name), *args) for name in names}
    )
    return answers


def well(answers: Mapping[str, Answer | Lost], left_out: dict[str, str]) -> dict[str, Any]:
    """The values of the clients that answered well; the others are noted."""
    for name, answer in answers.items():
        if not isinstance(answer, Answer) or answer.trouble:
            left_out[name] = trouble_of(answer)
    return {name: answer.value for name, answer in answers.items() if isinstance(answer, Answer) and not answer.trouble}


def each(
    context: Context, stage: str, task: Callable[..., Answer], names: Iterable[str], *args: Any, fault: str
) -> dict[str, Any]:
    """The values of all clients of the round; without one of them it fails."""
    with context.stage(stage):
        answers = ask(context, task.__name__, task, names, *args)
    left_out: dict[str, str] = {}
    values = well(answers, left_out)
    if left_out:
        raise RoundFailed(f"client {reasons_of(left_out)} {fault}")
    return values


def reasons_of(left_out: Mapping[str, str]) -> str:
    """Who is in trouble, reason by reason."""
    whose: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        whose.setdefault(reason, []).append(repr(name))
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in whose.items())


def trouble_of(answer: Any) -> str:
    """What is wrong with an answer, in words that may be shown."""
    if isinstance(answer, Lost):
        return answer.reason
    if not isinstance(answer, Answer) or not isinstance(answer.trouble, str):
        return "it sent something else than an answer"
    return "".join(letter if letter.isprintable() else "?" for letter in answer.trouble[:200])


def federated_of(context: Context) -> tuple[MixingSpec, FederatedPlan]:
    """The spec and the plan of a federated release."""
    spec, plan = context.spec, context.plan
    if not isinstance(spec, MixingSpec) or not isinstance(plan, FederatedPlan):
        raise SpecError("expected the spec and the plan of a federated release")
    return spec, plan
