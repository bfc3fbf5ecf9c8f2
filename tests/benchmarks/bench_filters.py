"""How many equal releases a cap admits: each filter alone, the portfolio, and a sequence that is fixed beforehand.

Run ``python tests/benchmarks/bench_filters.py --json filters.json``.

Every release is calibrated to the same (epsilon, delta) by itself. A filter alone has the whole delta of the cap; in
the portfolio each has its share. The last column composes equal releases by their privacy-loss distribution: it holds
only where nobody chooses a release after seeing another, so no filter can admit more.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from harness import argument_parser, write

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.deniability import SeedRecords
from dpdist.privacy.event import Event
from dpdist.privacy.events import DiscreteLaplace, Gaussian, SubsampledGaussian
from dpdist.privacy.filter import Cost, Filter, Portfolio

KINDS: dict[str, Callable[[float], Event]] = {
    "Gaussian": lambda scale: Gaussian(scale),
    "Laplace, one count": lambda scale: DiscreteLaplace(scale),
    "Laplace, 30 tables": lambda scale: DiscreteLaplace(scale, count=30),
    "seeds (k 2,000, γ 2, Z 367,500)": lambda scale: SeedRecords(2000, 2.0, 0.02, 367_500.0, round(1e4 / scale)),
    "mixing (l 64 of 7,841, 16,280 mixtures)": lambda scale: SubsampledGaussian(64 / 7841, scale, 16_280),
    "mixing (l 64 of 7,841, 50 mixtures)": lambda scale: SubsampledGaussian(64 / 7841, scale, 50),
}


def times(event: Event, count: int) -> Event:
    """An event that stands for `count` equal ones."""
    if isinstance(event, SeedRecords):
        return replace(event, records=event.records * count)
    return replace(event, count=event.count * count)  # type: ignore[call-arg]


def most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, for what stops fitting once."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def admitted(one: Filter, cost: Cost) -> int:
    """How many equal releases a filter admits."""
    if cost.amount is None:
        return 0
    amount = cost.amount
    return most(lambda count: one.holds(Cost(amount * count, cost.failure * count)))


def fixed(event: Event, epsilon: float, delta: float) -> int:
    """How many equal releases compose to the cap when they are fixed beforehand."""

    def fits(count: int) -> bool:
        try:
            return accountant.epsilon(times(event, count), delta=delta) <= epsilon
        except AccountingError:
            return False

    return most(fits)


def row(name: str, target: float, delta: float, cap: Portfolio) -> dict[str, Any]:
    """One kind of release."""
    scale = accountant.calibrate(KINDS[name], epsilon=target, delta=delta)
    event = KINDS[name](scale)
    shares = {one.name: admitted(one, one.cost(event)) for one in cap.filters}
    whole = {}
    for one in cap.filters:
        alone = Filter.at(one.kind, epsilon=cap.epsilon, delta=cap.delta, order=one.order)
        whole[one.name] = admitted(alone, alone.cost(event))
    return {
        "release": name,
        "epsilon": target,
        "alone": whole,
        "portfolio": max(shares.values()),
        "fixed": fixed(event, float(cap.epsilon), float(cap.delta)),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    names = list(rows[0]["alone"])
    lines = [
        "| release | ε each | " + " | ".join(names) + " | **portfolio** | fixed sequence |",
        "|---" * (len(names) + 4) + "|",
    ]
    for one in rows:
        counts = [*(f"{one['alone'][name]:,}" for name in names), f"**{one['portfolio']:,}**", f"{one['fixed']:,}"]
        lines.append(f"| {one['release']} | {one['epsilon']:g} | " + " | ".join(counts) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argument_parser(__doc__)
    parser.add_argument("--epsilon", default="4")
    parser.add_argument("--delta", default="1e-8")
    parser.add_argument("--each", type=float, nargs="+", default=[1.0, 0.1])
    options = parser.parse_args()
    cap = Portfolio.standard(epsilon=Fraction(options.epsilon), delta=Fraction(options.delta))
    rows = [row(name, target, float(cap.delta) / 10, cap) for target in options.each for name in KINDS]
    print(table(rows))
    write(options, rows)


if __name__ == "__main__":
    main()
