"""What determines what, four and five attributes, and pictures: beside counts made by hand."""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

from dpdist.evaluation.page import panels, plots
from dpdist.evaluation.records import Axis, View, view_of
from dpdist.evaluation.utility import marginals
from dpdist.evaluation.utility.similarity import marginal_section, wide_section
from dpdist.spec.schema import Schema

pytest.importorskip("matplotlib")
SIZES = (4, 3, 2, 2, 2)
LONG = "a name of more than forty characters, all of them shown"


def view(sizes: tuple[int, ...] = SIZES) -> View:
    names = (LONG, *"bcdefgh"[: len(sizes) - 1])
    axes = (Axis(n, tuple(map(str, range(s))), False) for n, s in zip(names, sizes, strict=True))
    return View(tuple(axes))


def table(rows: int, *, kept: float, seed: int) -> list[np.ndarray]:
    """The second attribute follows from the first, but for chance; the last one is the parity of three."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 4, rows)
    second = np.where(rng.random(rows) < kept, first % 3, rng.integers(0, 3, rows))
    third, fourth = rng.integers(0, 2, rows), rng.integers(0, 2, rows)
    return [first, second, third, fourth, (first // 2 + third + fourth) % 2]


def counted(real: list[np.ndarray], released: list[np.ndarray]) -> dict[str, marginals.Marginals]:
    operator = marginals.marginals_operator(SIZES, marginals.chosen_triples(SIZES, seed=0))
    parts = {"released": released, "real": real}
    parts |= {"first half": [c[::2] for c in real], "second half": [c[1::2] for c in real]}
    return {
        name: operator.finish(operator.compact(operator.chunk([c.astype(np.uint8) for c in columns])))
        for name, columns in parts.items()
    }


def test_a_broken_dependence_is_named_and_nothing_is_good() -> None:
    real = table(20_000, kept=1, seed=1)
    whole, broken = (counted(real, table(20_000, kept=kept, seed=2)) for kept in (1, 0.9))
    (found,) = marginals.dependences(whole, view())
    assert (found.text, found.real, found.released) == (f"{LONG} determines b", 1, 1)
    assert marginals.reserved("good", "Text.", [found]) == ("good", "Text.")
    (found,) = marginals.dependences(broken, view())
    right = np.mean(table(20_000, kept=0.9, seed=2)[0] % 3 == table(20_000, kept=0.9, seed=2)[1])
    assert found.released == pytest.approx(right)
    (found,) = marginals.dependences(counted(real, table(20_000, kept=0.985, seed=2)), view())
    assert (found.real, 0.98 < found.released < 0.995) == (1, True)
    assert found.is_broken  # one without an exception is, before one that has some
    assert not replace(found, real=0.999).is_broken
    section = marginal_section(broken, view(), seed=0)
    assert section.state == "fair"
    assert f"only in {right:.1%}".replace("%", "\u00a0%") in section.verdict


def test_a_dependence_of_five_attributes_alone_is_not_good() -> None:
    rng = np.random.default_rng(4)
    real, released = (np.append(bits, bits.sum(0, keepdims=True) % 2, 0) for bits in rng.integers(0, 2, (2, 4, 9_000)))
    released[4] = rng.integers(0, 2, 9_000)
    parts = {"real": list(real.astype(np.uint8)), "released": list(released.astype(np.uint8))}
    section = wide_section(parts, view((2,) * 5), seed=0)
    assert section.state == "bad"
    assert "five attributes" in section.verdict


def test_wide_marginals_are_those_of_a_dictionary() -> None:
    real, released = table(5_000, kept=1, seed=1), table(3_000, kept=1, seed=2)
    released[4] = np.random.default_rng(3).integers(0, 2, 3_000)  # as right in pairs and triples, wrong in fours
    counts = marginals.wide_counts({"real": real, "released": released}, view(), seed=0)
    assert counts["first half"].records + counts["second half"].records == 5_000
    assert len(counts["real"].subsets(4)) == 5
    for columns, name in ((real, "real"), (released, "released")):
        for which in ((0, 2, 3, 4), (0, 1, 2, 3, 4)):
            shape = [SIZES[i] for i in which]
            found = dict(zip(product(*map(range, shape)), counts[name].table(which), strict=True))
            groups = [dict(enumerate(np.argsort(np.argsort(np.unique(columns[i]))))) for i in which]
            rows, numbers = np.unique(np.stack([columns[i] for i in which]), axis=1, return_counts=True)
            for row, number in zip(rows.T.tolist(), numbers, strict=True):
                assert found[tuple(int(group[code]) for group, code in zip(groups, row, strict=True))] == number
            signs = [np.where(columns[i] < SIZES[i] / 2, -1, 1) for i in which]
            assert marginals.parity(counts[name], which) == pytest.approx(prod(signs).mean())
    apart, chance = marginals.parities(counts, 4)
    assert apart > 0.15 > 3 * chance
    section = wide_section({"real": real, "released": released}, view(), seed=0)
    assert section.figures["parities"]["4"] == (apart, chance)  # type: ignore[index]
    assert wide_section({}, view((2, 2)), seed=0).figures["applies"] is False


def test_large_domains_are_groups_of_about_as_many_records() -> None:
    rng = np.random.default_rng(0)
    axes = [Axis("age", tuple(map(str, range(100))), True), Axis("town", tuple(map(str, range(40))), False)]
    codes = [rng.integers(0, 100, 9_000), np.minimum(rng.geometric(0.3, 9_000) - 1, 39)]
    whole = View((*axes, *view((2, 2)).axes))
    codes += [rng.integers(0, 2, 9_000), rng.integers(0, 2, 9_000)]
    counts = marginals.wide_counts({"real": codes, "released": codes}, whole, seed=0)["real"].pairs
    assert counts.cardinalities == (6, 6, 2, 2)
    assert np.abs(counts.single(0) / 1_500 - 1).max() < 0.15
    np.testing.assert_array_equal(counts.single(1)[:5], np.bincount(codes[1])[:5])


def test_labels_are_whole_and_maps_have_a_scale() -> None:
    counts = counted(table(500, kept=1, seed=1), table(500, kept=1, seed=2))
    (picture,) = marginals.pictures(counts, view())
    heat = plots.heat_maps("maps", view().names, [("one", np.full((5, 5), -0.03))], alt="maps")
    for plot in (picture, heat):
        text = plot.svg.replace("\n", " ") + " ".join(panel.title for panel in plot.panels)
        assert all(word in text for word in LONG.split())
        assert "…" not in text
    assert ">-0.03</text>" in heat.svg  # where the matrix ends
    assert "var(--other)" in heat.svg
    assert "var(--bad)" not in heat.svg
    assert "var(--real)" in heat.svg
    several = plots.heat_maps("maps", "abc", [("real", np.eye(3)), ("released", np.eye(3))], alt="maps")
    assert [panel.title for panel in several.panels] == ["real", "released"]


NUMBER = {"name": "bmi", "kind": "number", "bounds": [0, 100], "missing": {"category": "unknown"}}
EDGES = [*range(0, 45, 3), 60]
KINDS = {
    "as wide as they are": NUMBER | {"bins": {"edges": EDGES}},
    "a heap": NUMBER | {"bins": {"edges": EDGES}, "heaps": [0.0]},
    "equal": NUMBER | {"bins": {"count": 20}},
    "months": NUMBER | {"kind": "date", "bounds": ["2020-01-01", "2021-12-31"], "bins": {"every": "month"}},
    "none missing": NUMBER | {"bins": {"count": 20}, "missing": "refuse"},
}


@pytest.mark.parametrize(
    ("kind", "notes"),
    [
        ("as wide as they are", ["unknown: real 20.0\u00a0%, released 10.0\u00a0%", "share per 1"]),
        ("a heap", ["unknown: real", "unequal width, drawn equally wide"]),
        ("equal", ["unknown: real"]),
        ("months", ["unknown: real"]),
        ("none missing", []),
    ],
)
def test_lines_have_no_missing_values_and_their_bins_are_as_wide_as_they_are(
    kind: str, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Matplotlib is given: ends of the bins, and densities that integrate to the shares."""
    from matplotlib.axes import Axes

    (axis,) = view_of(Schema.model_validate({"attributes": [KINDS[kind]]})).axes
    drawn: list[tuple[np.ndarray, np.ndarray]] = []
    monkeypatch.setattr(Axes, "stairs", lambda self, values, ends, **_: drawn.append((values, ends)))
    values = axis.size - (axis.missing is not None)
    shares = [np.append(np.full(values, (1 - m) / values), [m] * (axis.size - values)) for m in (0.2, 0.1)]
    (panel,) = panels.profile_plot("p", [panels.BothShares(axis, *shares)]).panels
    said = panel.note.split("; ") if panel.note else []
    assert len(said) == len(notes)
    assert all(note in one for note, one in zip(notes, said, strict=True))
    for (heights, ends), share in zip(drawn, shares, strict=True):
        assert len(heights) == values
        if kind == "as wide as they are":
            assert ends.tolist() == [*EDGES, 100]
            np.testing.assert_allclose(heights * np.diff(ends), share[:values])
        else:
            np.testing.assert_allclose(heights, share[:values])
            assert np.ptp(np.diff(ends)) < 4  # days of a month
    assert panel.title == "bmi"
