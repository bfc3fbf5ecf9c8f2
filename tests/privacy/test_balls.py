"""Balls hold the exact number, and one thread at a time sets their precision."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from threading import Event

import pytest
from flint import arb, ctx

from dpdist.privacy.balls import ball, working_precision


@pytest.mark.parametrize("value", [0, -7, 0.1, 2.0**-60, Fraction(1, 3)])
def test_a_ball_holds_its_number(value: float | Fraction) -> None:
    with working_precision(80):
        exact = Fraction(value)
        assert (ball(value) * exact.denominator).contains(arb(exact.numerator))


def test_threads_do_not_change_each_others_precision() -> None:
    before = ctx.prec

    def compute(bits: int) -> bool:
        for _ in range(200):
            with working_precision(bits):
                third = ball(Fraction(1, 3))
                if ctx.prec != bits or not 2.0 ** -(bits + 4) < float(third.rad()) < 2.0 ** -(bits - 4):
                    return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(compute, (64, 128, 256, 512)))
    assert ctx.prec == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_computes_can_compute() -> None:
    computing, forked = Event(), Event()

    def compute() -> None:
        with working_precision(64):
            computing.set()
            forked.wait(0.2)  # the fork waits for the end of this

    with ThreadPoolExecutor(1) as pool:
        pool.submit(compute)
        assert computing.wait(10)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)  # ends a child that waits for ever
            with working_precision(80):
                os._exit(0)
        forked.set()
        assert os.waitpid(child, 0)[1] == 0
