"""The stages of a central mixing release: confirm the classes, mix, finish, write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dpdist.cluster.executor import Deferred, Tasks
from dpdist.errors import CheckFailed
from dpdist.families.base.attempt import Attempt, write_records
from dpdist.families.base.family import Stage
from dpdist.families.mixing.classes import (
    ClassCodes,
    Classes,
    MixedClass,
    Mixtures,
    Restorations,
    ScaledClasses,
    class_sums,
    confirm,
    gather,
    note_left_out,
)
from dpdist.families.mixing.federated.stages import begin_round, collect
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import Mixer, Rows, block_of, piece_of
from dpdist.families.mixing.output import finish
from dpdist.families.mixing.restore import MixtureSums, join_sums, piece_sums, restoration, total_sums
from dpdist.families.mixing.scaling import Encoding, MomentPlan, Moments, noisy_moments
from dpdist.families.mixing.spec import MixingSpec
from dpdist.ledger.keys import KeyRef, load_noise

MixingAttempt = Attempt[MixingSpec, MixingPlan]


def stages(plan: MixingPlan) -> Sequence[Stage[MixingSpec, Any]]:
    """The stages of a mixing release, in order: those of a curator, or of the coordinator of clients."""
    first, second = (confirm_classes, mix) if plan.spec.federated is None else (begin_round, collect)
    return Stage("classes", first), Stage("mixtures", second), Stage("records", finish), Stage("write", write_records)


def confirm_classes(attempt: MixingAttempt) -> ScaledClasses:
    """Gather and confirm the classes, and draw the moments. Raises DataError, CheckFailed: no class was confirmed."""
    plan = attempt.plan
    classes = gather(attempt)
    confirmed = confirm(attempt, classes.sizes).outcomes
    if not any(confirmed):
        raise CheckFailed(
            "no class of mixing.classes has its declared minimum confirmed, so nothing is published: declare less, "
            "from public knowledge. The charge stays spent"
        )
    encoding, clip = plan.encoding, plan.clip
    if plan.moments is not None:
        moments = attempt.stored(Moments, partial(_draw_moments, attempt, plan.moments, classes))
        divide = attempt.spec.mixing.scaling == "standardised"
        encoding = moments.scaled(encoding, divide=divide)
        clip = clip if clip is not None else moments.norm(divide=divide)
    if clip is None:
        raise ValueError("a plan without moments has a clipping norm")
    attempt.public["clip"] = clip
    note_left_out(attempt, confirmed)
    return ScaledClasses(classes, confirmed, encoding, clip)


def _draw_moments(attempt: MixingAttempt, moments: MomentPlan, classes: Classes) -> Moments:
    plan, records = attempt.plan, sum(classes.sizes)
    minimum = sum(part.mixtures.minimum for part in plan.classes)
    return noisy_moments(attempt.noise, plan.encoding, records, classes.sums, moments, minimum=minimum)


def mix(attempt: MixingAttempt) -> Mixtures:
    """The noisy mixtures of every confirmed class, in the workers' memory, and how to restore their spread."""
    spec, plan, found = attempt.spec, attempt.plan, attempt.result(ScaledClasses)
    attempt.before_noise()
    classes = _mixed(attempt, found)

    def restore() -> Restorations:
        sigma, sums = plan.sigma_over_clip * found.clip, _sums(attempt, classes, found.encoding)
        return Restorations(
            {k: restoration(one, found.encoding, order=plan.order, sigma=sigma) for k, one in sums.items()}
        )

    restorations = attempt.stored(Restorations, restore) if spec.mixing.spread == "restored" else Restorations({})
    return Mixtures(classes, found.encoding, restorations, plan.label_sigma)


def _mixed(attempt: MixingAttempt, found: ScaledClasses) -> tuple[MixedClass, ...]:
    """The mixtures of each confirmed class."""
    plan, mixed = attempt.plan, []
    for place, part in enumerate(plan.classes):
        if not found.confirmed[place]:
            continue
        sigma = plan.sigma_over_clip * found.clip
        mixer = Mixer(order=plan.order, clip=found.clip, sigma=sigma, name=f"mixing/{part.code}")
        block = block_of(part.mixtures.records, width=plan.encoding.width, slots=attempt.executor.slots)
        stage = f"mixing {plan.spec.mixing.label} {place + 1} of {len(plan.classes)}"
        with attempt.stage(stage) as progress:
            task = attempt.executor.tasks("mixing")
            how = task.constant("how", (found.encoding, mixer, attempt.key))
            spans = [(at, min(at + block, part.mixtures.records)) for at in range(0, part.mixtures.records, block)]
            tasks = [task("block", _mix, how, found.classes.codes, place, *span) for span in spans]
            mixed.append(MixedClass(place, attempt.executor.persist(tasks, progress=progress), block))
    return tuple(mixed)


def _mix(how: tuple[Encoding, Mixer, KeyRef], codes: ClassCodes, place: int, start: int, stop: int) -> Rows:
    encoding, mixer, key = how
    noise = load_noise(key)
    return mixer.finish(noise, class_sums(codes[place], encoding, mixer, noise, start, stop), start)


def _sums(attempt: MixingAttempt, classes: Sequence[MixedClass], encoding: Encoding) -> dict[int, MixtureSums]:
    """Number, sum and products of the mixtures of each class."""
    executor, piece = attempt.executor, piece_of(encoding.width)
    made = [sums_of_mixtures(executor.tasks("spread"), one.blocks, block=one.block, piece=piece) for one in classes]
    return dict(zip((one.place for one in classes), executor.compute(made), strict=True))


def sums_of_mixtures(task: Tasks, blocks: Sequence[Deferred], *, block: int, piece: int) -> Deferred:
    """Task that finds the `MixtureSums` of one class, in an order that does not depend on the blocks."""
    sums = [task("sums", piece_sums, rows, number * block // piece, piece) for number, rows in enumerate(blocks)]
    return task("total", total_sums, task.tree("add", join_sums, sums))
