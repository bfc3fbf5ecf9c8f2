import tracemalloc

import numpy as np
import pytest

from dpdist.families.mixing.classes import Restorations
from dpdist.families.mixing.mixture import Mixer, clip_rows, piece_of
from dpdist.families.mixing.restore import mixture_sums, restoration
from dpdist.families.mixing.scaling import declared_encoding
from dpdist.families.mixing.stages import Finishing, finish_block
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import joined
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

NOISE = Noise(bytes(range(32)))
SCHEMA = Schema.model_validate(
    {
        "attributes": [
            {"name": "a", "kind": "integer", "bounds": [0, 100]},
            {"name": "b", "kind": "integer", "bounds": [0, 100]},
            {"name": "c", "kind": "categorical", "values": ["u", "v", "w"]},
            {"name": "y", "kind": "categorical", "values": ["n", "p"]},
        ]
    }
)
ENCODING = declared_encoding(SCHEMA, class_attribute="y")
RECORDS = 20_000


def rows() -> np.ndarray:
    """Two correlated numbers and a category that follows the first."""
    rng = np.random.default_rng(0)
    a = np.clip(rng.normal(50, 15, RECORDS), 0, 100).astype(np.uint8)
    b = np.clip(0.8 * a + rng.normal(10, 8, RECORDS), 0, 100).astype(np.uint8)
    c = np.where(rng.random(RECORDS) < a / 100, 0, rng.integers(1, 3, RECORDS)).astype(np.uint8)
    return clip_rows(ENCODING.encode([a, b, c]), clip=ENCODING.largest_norm)


MIXER = Mixer(order=32, clip=ENCODING.largest_norm, sigma=0.02, name="mixing/0")


def test_restored_mixtures_vary_like_the_rows():
    table = rows()
    mixtures = MIXER.mixtures(NOISE, table, 0, RECORDS)
    made = restoration(mixture_sums(mixtures), ENCODING, order=32, sigma=0.02)
    restored = made.apply(mixtures, NOISE, name="fill")
    assert restored.mean(axis=0) == pytest.approx(table.mean(axis=0), abs=0.02)
    assert np.cov(restored.T) == pytest.approx(np.cov(table.T), abs=0.02)
    assert np.cov(mixtures.T)[0, 0] < 0.2 * np.cov(table.T)[0, 0]
    decoded = ENCODING.decode(restored)
    assert np.bincount(decoded[2], minlength=3) / RECORDS == pytest.approx([0.5, 0.25, 0.25], abs=0.06)
    assert np.corrcoef(decoded[0], decoded[1])[0, 1] > 0.7


def test_noise_alone_restores_nothing_but_the_known_variance():
    mixer = Mixer(order=4, clip=1.0, sigma=5.0, name="mixing/0")
    mixtures = mixer.mixtures(NOISE, np.zeros((100, ENCODING.width), np.float32), 0, 20_000)
    made = restoration(mixture_sums(mixtures), ENCODING, order=4, sigma=5.0)
    assert made.directions.shape == (ENCODING.width, 0)
    assert np.all(made.fill[:2] == 0)


def test_restoring_does_not_depend_on_blocks():
    mixtures = MIXER.mixtures(NOISE, rows(), 0, 300)
    sums = mixture_sums(mixtures[:200]) + mixture_sums(mixtures[200:])
    whole = mixture_sums(mixtures)
    assert sums.count == whole.count
    assert sums.outer == pytest.approx(whole.outer)
    made = restoration(sums, ENCODING, order=32, sigma=0.02)
    parts = [made.apply(mixtures[a:b], NOISE, name="fill", start=a) for a, b in ((0, 1), (1, 120), (120, 300))]
    assert np.concatenate(parts) == pytest.approx(made.apply(mixtures, NOISE, name="fill"), abs=1e-6)
    again = Restorations.from_bytes(Restorations({1: made}).to_bytes()).by_class[1]
    assert np.array_equal(again.apply(mixtures, NOISE, name="fill"), made.apply(mixtures, NOISE, name="fill"))


def test_a_single_mixture_is_its_own_mean():
    mixtures = MIXER.mixtures(NOISE, rows(), 0, 1)
    made = restoration(mixture_sums(mixtures), ENCODING, order=32, sigma=0.02)
    assert made.gains.size == 0
    assert np.all(np.isfinite(made.apply(mixtures, NOISE, name="fill")))


@pytest.mark.parametrize("decode", [True, False])
def test_a_block_is_finished_piece_by_piece_in_little_more_memory_than_its_vectors(decode):
    mixtures = np.tile(MIXER.mixtures(NOISE, rows(), 0, 1_000), (400, 1))
    made = restoration(mixture_sums(mixtures), ENCODING, order=32, sigma=0.02)
    finishing = Finishing(
        encoding=ENCODING, restoration=made, decode=decode, classes=(0, 1), place=1, label_sigma=0.0, name="mixing/1"
    )
    how = (finishing, KeyRef.fixed(bytes(range(32)).hex()))
    tracemalloc.start()
    released = finish_block(how, mixtures, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * mixtures.nbytes
    whole = made.apply(mixtures, NOISE, name="mixing/1/fill")
    cut = 2 * piece_of(ENCODING.width)  # blocks hold whole pieces: bit for bit the same
    parts = [finish_block(how, mixtures[a:b], a) for a, b in ((0, cut), (cut, len(mixtures)))]
    again = joined(parts)
    assert all(map(np.array_equal, released, again))
    if decode:
        assert all(map(np.array_equal, released[1:], ENCODING.decode(whole)))
    else:
        assert np.abs(released[1] - whole).max() < 1e-6
