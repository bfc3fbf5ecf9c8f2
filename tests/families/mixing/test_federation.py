import math
import tracemalloc
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from dpdist.errors import AccountingError, DataError, RoundFailed
from dpdist.families.mixing.federated.messages import (
    MESSAGES_HELD,
    CorrelatedNoise,
    average,
    correlated_noise,
    largest_step,
    local_noise,
    noisy_steps,
)
from dpdist.families.mixing.mixture import Mixer, Rows, clip_rows
from dpdist.federated.messages import Masks, Message, check_message, public_key
from dpdist.privacy import accountant
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.noise import Noise

CLIENTS = tuple(f"client-{i}" for i in range(8))
ROUND = "attempt-1/class-0"
MIXER = Mixer(order=8, clip=2.0, sigma=0.2, name="mixing/0")


def sent(
    noise: Noise, masks: Masks, rows: Rows, mixer: Mixer, of: CorrelatedNoise, start: int, stop: int, *, client: str
) -> Message:
    """A client's message for mixtures `start` to `stop` - 1 of rows from `clip_rows`."""
    sums = mixer.sums(noise, rows, start, stop)
    return Message(client, ROUND, noisy_steps(noise, masks, sums, mixer, of, start))


def keys(count: int) -> list[bytes]:
    return [bytes([i + 1]) * 32 for i in range(count)]


def agree(count: int, context: str = ROUND) -> list[Masks]:
    private = keys(count)
    public = [public_key(key) for key in private]
    return [Masks.agree(key, [p for p in public if p != public_key(key)], context=context) for key in private]


def client_rows(count: int, width: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [clip_rows(rng.normal(size=(40, width)) * 0.5, clip=2.0) for _ in range(count)]


def send(count: int, noise_of, *, mixtures: int = 30, rows=None, masked: bool = True):
    rows = client_rows(count) if rows is None else rows
    masks = agree(count) if masked else [Masks()] * count
    return [
        sent(Noise(bytes([i]) * 32), masks[i], rows[i], MIXER, noise_of, 0, mixtures, client=CLIENTS[i])
        for i in range(count)
    ]


def view_covariance(clients: int, honest: int, sigma: float, mask_sigma: float) -> np.ndarray:
    """Covariance of the honest messages once the masks shared with colluding clients are removed, pair by pair."""
    covariance = sigma**2 * np.eye(honest)
    for s in range(honest):
        for r in range(s + 1, honest):
            pair = np.zeros(honest)
            pair[s], pair[r] = 1, -1
            covariance += mask_sigma**2 * np.outer(pair, pair)
    return covariance


@pytest.mark.parametrize(("clients", "colluding"), [(2, 0), (8, 0), (8, 2), (8, 6), (8, 7), (1, 0)])
@pytest.mark.parametrize("mask_ratio", [0.3, 1.0, 64.0])
def test_leakage_is_that_of_the_exact_covariance(clients, colluding, mask_ratio):
    noise = correlated_noise(0.7, clients=clients, colluding=colluding, mask_ratio=mask_ratio)
    honest = clients - colluding
    covariance = view_covariance(clients, honest, noise.sigma, noise.mask_sigma)
    shift = np.zeros(honest)
    shift[0] = 0.25
    exact = math.sqrt(shift @ np.linalg.solve(covariance, shift))
    # Calibrated to the guarantee of independent noise, never less of it.
    assert exact <= 0.25 / 0.7 * (1 + 1e-9)
    assert exact == pytest.approx(0.25 / 0.7, rel=1e-9)


@pytest.mark.parametrize(("clients", "colluding"), [(8, 0), (8, 2)])
def test_the_average_is_as_good_as_with_a_trusted_curator(clients, colluding):
    tau, honest = 0.7, clients - colluding
    noise = correlated_noise(tau, clients=clients, colluding=colluding)
    assert noise.sigma == pytest.approx(tau / math.sqrt(honest), rel=1e-3)
    curator = tau / clients
    assert noise.average == pytest.approx(curator * math.sqrt(clients / honest), rel=1e-3)
    assert local_noise(tau, clients=clients).average == pytest.approx(curator * math.sqrt(clients))


@pytest.mark.parametrize(
    "bad",
    [{"clients": 2, "colluding": 2}, {"clients": 0}, {"clients": 3, "colluding": -1}, {"clients": 3, "mask_ratio": 0}],
)
def test_rounds_without_an_honest_client_are_refused(bad):
    with pytest.raises(AccountingError):
        correlated_noise(1.0, **bad)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 50), st.integers(1, 20))
def test_masks_cancel_exactly(count, start, draws):
    masks = [m.draw("x", draws, sigma=1e7, start=start) for m in agree(count)]
    assert np.array_equal(np.sum(masks, axis=0), np.zeros(draws, np.int64))
    assert np.any(masks[0] != 0)
    assert np.array_equal(agree(count)[0].draw("x", start + draws, sigma=1e7)[start:], masks[0])


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (1.3, False)])
def test_masks_have_the_stated_deviation(factor, accepted):
    draws = 50_000
    mask = agree(4)[1].draw("x", draws, sigma=1e4)
    statistic = ((mask / (1e4 * factor * math.sqrt(3))) ** 2).sum()
    assert (min(chi2.sf(statistic, draws), chi2.cdf(statistic, draws)) > 1e-20) == accepted


def test_masks_belong_to_their_attempt_and_pair():
    one, other = agree(3), agree(3, "attempt-2/class-0")
    assert not np.array_equal(one[0].draw("x", 20, sigma=1e6), other[0].draw("x", 20, sigma=1e6))
    assert not np.array_equal(np.abs(one[0].draw("x", 20, sigma=1e6)), np.abs(one[1].draw("x", 20, sigma=1e6)))


@pytest.mark.parametrize("peer", [bytes(32), b"short"])
def test_a_public_key_that_is_none_is_refused(peer):
    with pytest.raises(RoundFailed, match="not a valid"):
        Masks.agree(keys(1)[0], [peer], context=ROUND)


def test_a_public_key_given_twice_is_refused():
    peer = public_key(keys(2)[1])
    with pytest.raises(RoundFailed, match="twice"):
        Masks.agree(keys(1)[0], [peer, peer], context=ROUND)
    with pytest.raises(RoundFailed, match="twice"):
        Masks.agree(keys(1)[0], [public_key(keys(1)[0])], context=ROUND)


@pytest.mark.parametrize("colluding", [0, 2, 7])
def test_the_average_is_that_of_the_clients_noisy_mixtures(colluding):
    noise = correlated_noise(MIXER.sigma, clients=8, colluding=colluding)
    rows = client_rows(8)
    messages = send(8, noise, rows=rows, masked=noise.mask_sigma > 0)
    mixed = average(messages, MIXER)
    own = replace(MIXER, sigma=noise.sigma)
    alone = [own.mixtures(Noise(bytes([i]) * 32), rows[i], 0, 30).astype(np.float64) for i in range(8)]
    assert mixed == pytest.approx(np.mean(alone, axis=0), abs=1e-6)


def test_a_message_alone_shows_nothing_of_its_sums():
    noise = correlated_noise(MIXER.sigma, clients=8)
    unit = MIXER.sigma * MIXER.order / MIXER.grid
    spread = send(8, noise, mixtures=2000)[0].steps.std()
    assert spread == pytest.approx(64 * math.sqrt(7) * unit, rel=0.1)


def test_the_average_has_the_stated_noise():
    rows = [np.zeros((20, 10), np.float32)] * 8
    for noise in (correlated_noise(MIXER.sigma, clients=8, colluding=2), local_noise(MIXER.sigma, clients=8)):
        messages = send(8, noise, mixtures=2000, rows=rows, masked=noise.mask_sigma > 0)
        mixed = average(messages, MIXER).astype(np.float64)
        statistic = ((mixed / noise.average) ** 2).sum()
        assert min(chi2.sf(statistic, mixed.size), chi2.cdf(statistic, mixed.size)) > 1e-20
        assert chi2.sf(statistic * 1.3**2, mixed.size) < 1e-20


def test_messages_do_not_depend_on_their_range():
    noise = correlated_noise(MIXER.sigma, clients=3)
    masks, rows = agree(3)[0], client_rows(1)[0]

    def steps(a: int, b: int) -> np.ndarray:
        own = Noise(bytes(32))
        return sent(own, masks, rows, MIXER, noise, a, b, client="a").steps

    assert np.array_equal(steps(0, 50), np.concatenate([steps(0, 13), steps(13, 13), steps(13, 50)]))


def test_a_local_message_holds_the_mixtures_of_a_central_release():
    """Clients and curators draw by one method: what an audit finds of one holds for the other."""
    own, rows = Noise(bytes(32)), client_rows(1)[0]
    message = sent(own, Masks(), rows, MIXER, local_noise(MIXER.sigma, clients=3), 5, 40, client="a")
    mixtures = (message.steps * MIXER.grid / MIXER.order).astype(np.float32)
    assert np.array_equal(mixtures, MIXER.mixtures(own, rows, 5, 40))


def test_messages_take_the_memory_that_plans_count():
    sums, masks, noise = np.zeros((20_000, 50), np.float32), agree(8)[0], correlated_noise(MIXER.sigma, clients=8)
    tracemalloc.start()
    steps = noisy_steps(Noise(bytes(32)), masks, sums, MIXER, noise, 0)
    made = tracemalloc.get_traced_memory()[1]
    messages = [Message(client, ROUND, steps) for client in CLIENTS]
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    average(messages, MIXER)
    averaged = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert max(made, averaged) < MESSAGES_HELD * steps.nbytes


def checked(message, **changed):
    settings = {"client": "client-0", "public_key": "", "round": ROUND, "shape": (30, 5)} | changed
    check_message(message, **settings)


def broken(message, steps):
    return replace(message, steps=steps)


def test_faults_fail_the_round():
    noise = correlated_noise(MIXER.sigma, clients=3)
    first, *_ = send(3, noise)
    other = "'client-0' sent something else than its message"
    faults = [
        (other, replace(first, client="stranger")),
        (other, replace(first, client=[])),
        (other, {"steps": first.steps}),
        ("of another round", replace(first, round="attempt-0/class-0")),
        ("30 x 5 int64", broken(first, first.steps[:-1])),
        ("no array of 30", broken(first, np.full((30, 5), np.nan))),
        ("no array of", broken(first, first.steps.tolist())),
        ("beyond", broken(first, np.full((30, 5), np.iinfo(np.int64).min))),
    ]
    for text, sent in faults:
        with pytest.raises(RoundFailed, match=text):
            checked(sent)
    largest = largest_step(MIXER, noise)
    checked(first, largest=largest)
    with pytest.raises(RoundFailed, match="beyond what noise reaches"):
        checked(broken(first, np.full((30, 5), largest + 1)), largest=largest)


def test_masks_of_other_rounds_are_refused():
    noise = correlated_noise(MIXER.sigma, clients=3)
    own, rows = Noise(bytes(32)), client_rows(1)[0]
    for masks, of in ((Masks(), noise), (agree(4)[0], noise), (agree(3)[0], local_noise(0.2, clients=3))):
        with pytest.raises(RoundFailed, match="masks"):
            sent(own, masks, rows, MIXER, of, 0, 1, client="a")


def test_a_client_without_records_of_a_class_is_refused():
    noise = local_noise(MIXER.sigma, clients=3)
    none = np.empty((0, 5), np.float32)
    with pytest.raises(DataError, match="fewer records"):
        sent(Noise(bytes(32)), Masks(), none, MIXER, noise, 0, 1, client="a")


def test_correlated_noise_below_the_grid_is_refused():
    noise = correlated_noise(1e-4, clients=3)
    with pytest.raises(AccountingError, match="too small for the grid"):
        sent(Noise(bytes(32)), agree(3)[0], client_rows(1)[0], MIXER, noise, 0, 1, client="a")


def leaked(noise_of, *, colluding: int) -> float:
    """Shift in deviations that the best linear look at real messages of four clients finds, in units of the stated.

    The coordinator and the last `colluding` clients know all messages and all masks that these clients share. The first
    client's class has as many rows as a mixture, one of which is opposite in the other world.
    """
    clients, draws, mixer = 4, 20_000, replace(MIXER, clip=1.0, sigma=0.3)
    honest = clients - colluding
    private = keys(clients)
    public = [public_key(key) for key in private]
    rows = np.tile(np.array([[1.0]], np.float32), (mixer.order, 1))
    other = rows.copy()
    other[0] = -1.0

    def view(first: np.ndarray) -> np.ndarray:
        seen = []
        for s in range(honest):
            masks = Masks.agree(private[s], [p for p in public if p != public[s]], context=ROUND)
            own = Noise(bytes([s]) * 32)
            table = first if s == 0 else rows
            message = sent(own, masks, table, mixer, noise_of, 0, draws, client=CLIENTS[s])
            known = np.zeros((draws, 1), np.int64)
            for r in range(honest, clients):  # what a colluding client draws towards this one
                shared = Masks.agree(private[r], [public[s]], context=ROUND)
                unit = noise_of.mask_sigma * mixer.order / mixer.grid
                known -= shared.draw(f"{mixer.name}/mask", draws, sigma=unit).reshape(-1, 1)
            seen.append((message.steps - known)[:, 0] * (mixer.grid / mixer.order))
        return np.stack(seen)

    before, after = view(rows), view(other)
    covariance = view_covariance(clients, honest, noise_of.sigma, noise_of.mask_sigma)
    look = np.linalg.solve(covariance, np.eye(honest)[0])
    shift = look @ (before - after)
    assert shift.std() < 1e-9 * abs(shift.mean())  # the same noise in both worlds
    stated = 2 * mixer.clip / mixer.order / mixer.sigma
    return float(shift.mean() / (look @ before).std() / stated)


def test_a_coalition_sees_what_is_stated_and_no_more():
    for colluding in (0, 2):
        priced = correlated_noise(0.3, clients=4, colluding=colluding)
        assert leaked(priced, colluding=colluding) == pytest.approx(1, abs=0.03)
    unpriced = correlated_noise(0.3, clients=4)
    assert leaked(unpriced, colluding=2) > 1.3  # the factor sqrt(2) that the colluding clients take away


@pytest.mark.parametrize("mask_ratio", [0.5, 3.0])
def test_sampled_rows_under_correlated_noise_never_exceed_the_charge_and_attain_it(mask_ratio):
    """The exact law of both messages of two clients, all their sets of rows enumerated, with and without a record."""
    tau, order, size = 0.8, 2, 3
    noise = correlated_noise(tau, clients=2, mask_ratio=mask_ratio)
    white = np.linalg.cholesky(view_covariance(2, 2, noise.sigma, noise.mask_sigma))
    axis = np.linspace(-9, 9, 361)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)

    def law(own: np.ndarray, other: np.ndarray) -> np.ndarray:
        means = product(*([np.mean(chosen) for chosen in combinations(rows, order)] for rows in (own, other)))
        densities = [np.exp(-((points - np.linalg.solve(white, mean)) ** 2).sum(axis=-1) / 2) for mean in means]
        return np.mean(densities, axis=0) * (axis[1] - axis[0]) ** 2 / (2 * np.pi)

    rng = np.random.default_rng(0)
    tables = [
        (-np.ones(size - 1), np.zeros(3)),
        *((rng.uniform(-1, 1, size - 1), rng.uniform(-1, 1, 3)) for _ in "abc"),
    ]
    laws = [(law(own, other), law(np.append(own, 1.0), other)) for own, other in tables]
    for epsilon in (0.1, 1.0):
        pairs = (pair for one in laws for pair in (one, one[::-1]))
        worst = max(float(np.maximum(p - np.exp(epsilon) * q, 0).sum()) for p, q in pairs)
        charged = accountant.delta(ClassMixtures(minimum=size, order=order, records=1).event(tau), epsilon=epsilon)
        assert 0.99 * charged <= worst <= charged
