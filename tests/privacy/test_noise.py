"""Streams, draws, their distributions and what a Noise refuses."""

import copy
import hashlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from dpdist.privacy import _thresholds
from dpdist.privacy import noise as noise_module
from dpdist.privacy.arrays import LARGEST_SCALE
from dpdist.privacy.noise import Noise

KEY = bytes(range(32))
NOISE = Noise(KEY)
IMPOSSIBLE = 1e-20

DRAWS: dict[str, Callable[..., np.ndarray]] = {
    "words": NOISE.words,
    "integers": lambda *a, **k: NOISE.integers(*a, high=12_345, **k),
    "integers, often two words": lambda *a, **k: NOISE.integers(*a, high=2**62 + 1, **k),
    "laplace": lambda *a, **k: NOISE.discrete_laplace(*a, scale=17.3, **k),
    "laplace, four digits": lambda *a, **k: NOISE.discrete_laplace(*a, scale=2.0**40, **k),
    "gaussian": lambda *a, **k: NOISE.gaussian_integers(*a, sigma=17.3, **k),
    "gaussian, four digits": lambda *a, **k: NOISE.gaussian_integers(*a, sigma=2.0**33, **k),
    "grid laplace": lambda *a, **k: NOISE.grid_laplace(*a, scale=0.7, grid=2.0**-30, **k),
    "grid gaussian": lambda *a, **k: NOISE.grid_gaussian(*a, sigma=0.7, grid=2.0**-11, **k),
}
SETTINGS: list[tuple[str, dict[str, float], Callable[..., np.ndarray]]] = [
    ("scale", {}, NOISE.discrete_laplace),
    ("sigma", {}, NOISE.gaussian_integers),
    ("scale", {"grid": 0.5}, NOISE.grid_laplace),
    ("sigma", {"grid": 0.5}, NOISE.grid_gaussian),
]
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


def stream_block(name: bytes, counter: int) -> bytes:
    """One block of a stream from first principles: HMAC by its definition, AES-256 on the counter itself."""
    padded = KEY.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in padded) + name).digest()
    subkey = hashlib.sha256(bytes(b ^ 0x5C for b in padded) + inner).digest()
    return Cipher(algorithms.AES(subkey), modes.ECB()).encryptor().update(counter.to_bytes(16, "big"))


def stream_word(name: bytes, index: int) -> int:
    return int.from_bytes(stream_block(name, index // 2)[8 * (index % 2) :][:8], "little")


class TestStream:
    @pytest.mark.parametrize(
        ("name", "block", "expected"),
        # `openssl dgst -sha256 -mac HMAC -macopt hexkey:KEY` of the name, `openssl enc -aes-256-ecb` of the counter
        [
            ("parameters/table/3", 0, "73359bfd41fb72e72afefa7e325e54ae"),
            ("parameters/table/3", 1, "81dc1fb9d8a59b8e3e3c4c8cfedd17ea"),
            ("parameters/table/3", 10**9, "460f56c413d1f40e536c19c7a20158ac"),
            ("candidates/seed", 0, "6452e297a858b77dab93c809f0b337d8"),
            ("candidates/seed", 1, "58fb317fd2000d512c4138ef4c64f211"),
            ("größe", 0, "697a3bdd0d7ef5681cb156404d187150"),
        ],
    )
    def test_known_answers(self, name: str, block: int, expected: str) -> None:
        words = NOISE.words(name, 2, start=2 * block)
        assert words.dtype == np.uint64
        assert words.astype("<u8").tobytes().hex() == expected
        assert stream_block(name.encode(), block).hex() == expected

    @settings(deadline=None)
    @given(name=st.text(st.characters(codec="utf-8", exclude_characters="\0")), start=st.integers(0, 2**64))
    def test_words_from_first_principles(self, name: str, start: int) -> None:
        expected = [stream_word(name.encode(), start + i) for i in range(3)]
        assert NOISE.words(name, 3, start=start).tolist() == expected

    @every_draw
    @settings(max_examples=25, deadline=None)
    @given(start=st.integers(0, 300), count=st.integers(0, 300), chunk=st.integers(1, 64))
    def test_any_window_and_any_chunk(
        self, draw: Callable[..., np.ndarray], start: int, count: int, chunk: int
    ) -> None:
        whole = draw("windows", 600)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noise_module, "_CHUNK", chunk)
            patch.setattr(noise_module, "_ZEROS", bytes(8 * chunk))
            window = draw("windows", count, start=start)
        assert window.dtype == whole.dtype
        np.testing.assert_array_equal(window, whole[start : start + count])

    @every_draw
    def test_names_and_keys_give_independent_draws(self, draw: Callable[..., np.ndarray]) -> None:
        count = 100_000
        one, two = draw("a/1", count), draw("a/2", count)
        assert not np.array_equal(one, two)
        for x, y in [(one, two), (one[1:], one[:-1]), (one[1:], two[:-1]), (one, two[::-1])]:
            correlation = np.corrcoef(x.astype(float), y.astype(float))[0, 1]
            assert abs(correlation) < 9.4 / np.sqrt(count)  # 9.4 deviations: p = 1e-20

    def test_keys_and_names_share_no_word(self) -> None:
        streams = [Noise(bytes(31) + bytes([i])).words("x", 5000) for i in range(4)]
        streams += [NOISE.words(name, 5000) for name in ("x", "x/1", "x/10", "X", "")]
        assert np.unique(np.concatenate(streams)).size == 5000 * len(streams)

    def test_digits_have_streams_of_their_own(self) -> None:
        values = NOISE.discrete_laplace("digits", 200_000, scale=2.0**30)
        low, high = values % 4096, values // 4096
        assert abs(np.corrcoef(low, high)[0, 1]) < 9.4 / np.sqrt(values.size)
        low_digits = NOISE.gaussian_integers("digits", 200_000, sigma=2.0**30) % 65536
        assert stats.chisquare(np.bincount(low_digits // 256, minlength=256)).pvalue > IMPOSSIBLE
        assert stats.chisquare(np.bincount(low_digits % 256, minlength=256)).pvalue > IMPOSSIBLE

    def test_result_can_be_changed_without_changing_the_stream(self) -> None:
        first = NOISE.words("mutable", 4)
        kept = first.copy()
        first[:] = 0
        np.testing.assert_array_equal(NOISE.words("mutable", 4), kept)


class TestIntegers:
    @pytest.mark.parametrize("high", [1, 2, 3, 10, 1_333_333, 2**32 - 1, 2**32, 2**32 + 1, 2**53 + 1, 2**62 + 1, 2**63])
    def test_exact_product_with_128_bits(self, high: int) -> None:
        values = NOISE.integers("i", 500, high=high, start=7)
        words = [(stream_word(b"i", i) << 64) + stream_word(b"i\0second", i) for i in range(7, 507)]
        assert values.dtype == np.int64
        assert values.tolist() == [word * high >> 128 for word in words]

    @pytest.mark.parametrize("high", [0, -1, 2**63 + 1])
    def test_range_is_checked(self, high: int) -> None:
        with pytest.raises(ValueError, match=r"high must be from 1 to 2\*\*63"):
            NOISE.integers("i", 1, high=high)


def laplace_tail(v: np.ndarray, scale: float) -> np.ndarray:
    """``P(Z > v)`` for v >= 0."""
    return np.exp(-(v + 1) / scale) / (1 + np.exp(-1 / scale))


def gaussian_tail(v: np.ndarray, sigma: float) -> np.ndarray:
    return special.erfc((v + 0.5) / (sigma * np.sqrt(2))) / 2


def p_value(values: np.ndarray, tail: Callable[..., np.ndarray], scale: float) -> float:
    """Exact binomial tests of P(Z > v), P(Z < -v) and P(|Z| > v) at a few cut points, Bonferroni."""
    cuts = np.unique(np.floor(scale * np.array([0.0, 0.1, 0.3, 0.7, 1.2, 2, 3, 5, 8, 12])))
    probability = tail(cuts, scale)
    smallest = 1.0
    for data, p in [(values, probability), (-values, probability), (np.abs(values), 2 * probability)]:
        above = np.array([np.count_nonzero(data > cut) for cut in cuts])
        lower, upper = stats.binom.cdf(above, data.size, p), stats.binom.sf(above - 1, data.size, p)
        smallest = min(smallest, float(np.minimum(lower, upper).min()))
    return 6 * cuts.size * smallest


SCALES = [0.1, 1, 17.3, 1000, 1025.5, 1e6, 2.0**33]


class TestDistributions:
    @pytest.mark.parametrize("scale", SCALES)
    def test_laplace_accepts_its_scale_and_no_other(self, scale: float) -> None:
        values = NOISE.discrete_laplace("laplace", 100_000 if scale >= 1 else 2_000_000, scale=scale)
        assert values.dtype == np.int64
        assert p_value(values, laplace_tail, scale) > 1e-6
        assert p_value(values, laplace_tail, 1.3 * scale) < IMPOSSIBLE
        assert p_value(values, laplace_tail, 0.7 * scale) < IMPOSSIBLE

    @pytest.mark.parametrize("sigma", [0.25, *SCALES])
    def test_gaussian_accepts_its_deviation_and_no_other(self, sigma: float) -> None:
        values = NOISE.gaussian_integers("gaussian", 100_000 if sigma >= 1 else 2_000_000, sigma=sigma)
        assert values.dtype == np.int64
        assert p_value(values, gaussian_tail, sigma) > 1e-6
        assert p_value(values, gaussian_tail, 1.3 * sigma) < IMPOSSIBLE
        if sigma != 0.1:  # P(Z != 0) is 6e-7 at 0.1 and far less at 0.07: no number of draws tells these two apart
            assert p_value(values, gaussian_tail, 0.7 * sigma) < IMPOSSIBLE

    def test_gaussian_is_not_laplace(self) -> None:
        sigma = 17.3
        gaussian = NOISE.gaussian_integers("x", 100_000, sigma=sigma)
        laplace = NOISE.discrete_laplace("x", 100_000, scale=sigma / np.sqrt(2))
        assert p_value(gaussian, laplace_tail, sigma / np.sqrt(2)) < IMPOSSIBLE
        assert p_value(laplace, gaussian_tail, sigma) < IMPOSSIBLE

    @pytest.mark.parametrize(("draw", "tail"), [("laplace", laplace_tail), ("gaussian", gaussian_tail)])
    def test_every_cell(self, draw: str, tail: Callable[..., np.ndarray]) -> None:
        values = DRAWS[draw]("cells", 1_000_000)
        edges = np.arange(60)
        cells = -np.diff(tail(edges, 17.3))
        expected = np.concatenate([cells[::-1], [1 - 2 * tail(np.array(0), 17.3)], cells])
        observed = np.bincount(values[np.abs(values) < 60] + 59, minlength=119)
        rest = 1 - expected.sum()
        test = stats.chisquare(
            [*observed, values.size - observed.sum()], [*(expected * values.size), rest * values.size]
        )
        assert test.pvalue > 1e-6

    @pytest.mark.parametrize("scale", [1e6, 2.0**33])
    def test_wide_draws_follow_the_whole_curve(self, scale: float) -> None:
        laplace = NOISE.discrete_laplace("ks", 300_000, scale=scale) / scale
        gaussian = NOISE.gaussian_integers("ks", 300_000, sigma=scale) / scale
        assert stats.kstest(laplace, "laplace").pvalue > 1e-6
        assert stats.kstest(gaussian, "norm").pvalue > 1e-6
        assert stats.kstest(laplace / 1.3, "laplace").pvalue < IMPOSSIBLE
        assert stats.kstest(gaussian / 1.3, "norm").pvalue < IMPOSSIBLE

    def test_far_tail(self) -> None:
        count = 4_000_000
        far = NOISE.discrete_laplace("tail", count, scale=1.0)
        for v in (10, 12, 14):
            p = float(2 * laplace_tail(np.array(v), 1.0))
            above = np.count_nonzero(np.abs(far) > v)
            assert min(stats.binom.cdf(above, count, p), stats.binom.sf(above - 1, count, p)) > 1e-6
        assert np.abs(far).max() > 12

    @pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e-9, 1 / 128])
    def test_tiny_scales_give_zeros(self, scale: float) -> None:
        assert not NOISE.discrete_laplace("tiny", 10_000, scale=scale).any()
        assert not NOISE.gaussian_integers("tiny", 10_000, sigma=scale).any()

    def test_largest_scale(self) -> None:
        laplace = NOISE.discrete_laplace("large", 50_000, scale=LARGEST_SCALE)
        gaussian = NOISE.gaussian_integers("large", 50_000, sigma=LARGEST_SCALE)
        assert p_value(laplace, laplace_tail, LARGEST_SCALE) > 1e-6
        assert p_value(gaussian, gaussian_tail, LARGEST_SCALE) > 1e-6
        for digits in (_thresholds.laplace(Fraction(LARGEST_SCALE)), _thresholds.gaussian(Fraction(LARGEST_SCALE))):
            assert sum(factor * table.bound for factor, table in digits) < 2**52

    def test_a_fraction_and_its_float_are_one_scale(self) -> None:
        for draw in (
            lambda scale: NOISE.discrete_laplace("same", 100, scale=scale),
            lambda scale: NOISE.gaussian_integers("same", 100, sigma=scale),
        ):
            np.testing.assert_array_equal(draw(17.25), draw(Fraction(69, 4)))
            np.testing.assert_array_equal(draw(3), draw(np.float32(3)))

    @pytest.mark.parametrize(
        ("draw", "digits"),
        [
            (lambda *a, **k: NOISE.discrete_laplace(*a, scale=3, **k), _thresholds.laplace(Fraction(3))),
            (lambda *a, **k: NOISE.gaussian_integers(*a, sigma=3, **k), _thresholds.gaussian(Fraction(3))),
        ],
    )
    def test_a_tie_reads_the_second_word_of_that_draw(
        self, draw: Callable[..., np.ndarray], digits: _thresholds.Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ((_, table),) = digits
        between = table.bound - 2  # the threshold between -2 and -1

        def words(_self: Noise, address: bytes, count: int, start: int) -> np.ndarray:
            if address == b"tie":
                return np.full(count, table.high[between])
            assert address == b"tie\0second"
            odd = np.arange(start, start + count, dtype=np.uint64) % np.uint64(2)
            return table.low[between] - odd  # odd draws stay one unit below the threshold

        monkeypatch.setattr(Noise, "_words", words)
        monkeypatch.setattr(noise_module, "_CHUNK", 3)
        for start in (0, 1, 2**20 + 1):
            assert draw("tie", 6, start=start).tolist() == [-1 - (start + i) % 2 for i in range(6)]


class TestGrid:
    def test_grid_draws_are_integer_draws_times_the_grid(self) -> None:
        grid = 2.0**-12
        laplace = NOISE.grid_laplace("g", 1000, scale=0.3, grid=grid, start=5)
        gaussian = NOISE.grid_gaussian("g", 1000, sigma=0.3, grid=grid, start=5)
        assert laplace.dtype == gaussian.dtype == np.float64
        np.testing.assert_array_equal(
            laplace / grid, NOISE.discrete_laplace("g", 1000, scale=Fraction(0.3) * 4096, start=5)
        )
        np.testing.assert_array_equal(
            gaussian / grid, NOISE.gaussian_integers("g", 1000, sigma=Fraction(0.3) * 4096, start=5)
        )

    @pytest.mark.parametrize("grid", [0.3, 0.0, -0.5, float("nan"), float("inf"), 3.0, 2.0**1000])
    def test_only_powers_of_two(self, grid: float) -> None:
        for setting, _, draw in SETTINGS[2:]:
            with pytest.raises(ValueError, match="grid must be a power of two"):
                draw("g", 1, **{setting: 1.0}, grid=grid)


class TestRefusals:
    @pytest.mark.parametrize(
        "refused", [0, 0.0, -1.0, float("nan"), float("inf"), -float("inf"), Fraction(-1, 3), np.float64("nan")]
    )
    def test_scales_must_be_positive_and_finite(self, refused: float) -> None:
        for setting, grid, draw in SETTINGS:
            with pytest.raises(ValueError, match=f"{setting} must be a finite number above 0, got"):
                draw("x", 1, **{setting: refused}, **grid)

    @pytest.mark.parametrize("refused", [LARGEST_SCALE * 1.001, 1e300, 10**400, Fraction(10**400)])
    def test_scales_must_not_be_too_large(self, refused: float) -> None:
        for setting, grid, draw in SETTINGS:
            with pytest.raises(ValueError, match=rf"{setting} must be at most 2\*\*45 grid steps"):
                draw("x", 1, **{setting: refused}, **grid)
        with pytest.raises(ValueError, match=r"sigma must be at most 2\*\*45 grid steps"):
            NOISE.grid_gaussian("x", 1, sigma=1.0, grid=2.0**-46)

    @every_draw
    def test_windows_and_names(self, draw: Callable[..., np.ndarray]) -> None:
        for window in ({"count": -1}, {"count": 1, "start": -1}):
            with pytest.raises(ValueError, match="start and count must not be negative"):
                draw("x", **window)
        with pytest.raises(ValueError, match="NUL"):
            draw("x\0second", 1)
        with pytest.raises(TypeError):
            draw("x", 1.5)
        assert draw("x", 0).shape == (0,)

    @pytest.mark.parametrize("length", [0, 16, 31, 33])
    def test_key_length(self, length: int) -> None:
        with pytest.raises(ValueError, match="exactly 32 bytes"):
            Noise(bytes(length))

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps, lambda x: pickle.dumps(x, 0)])
    def test_never_pickled_or_copied(self, duplicate: Callable[[Noise], object]) -> None:
        with pytest.raises(TypeError, match="never pickled or copied; pass a KeyRef"):
            duplicate(NOISE)

    def test_the_key_is_not_shown(self) -> None:
        noise = Noise(b"very secret key of 32 characters")
        for shown in (repr(noise), str(noise), f"{noise}", repr([noise])):
            assert "secret" not in shown
            assert "hidden" in shown
        assert not hasattr(noise, "__dict__")

    def test_a_key_that_changes_afterwards_changes_nothing(self) -> None:
        key = bytearray(KEY)
        noise = Noise(key)
        key[:] = bytes(32)
        np.testing.assert_array_equal(noise.words("x", 3), NOISE.words("x", 3))


def test_import_is_light() -> None:
    heavy = "import sys, dpdist.privacy.noise; print(sorted({'flint', 'mpmath', 'scipy', 'dask'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
