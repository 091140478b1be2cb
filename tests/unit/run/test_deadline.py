"""A total budget cuts what runs too long, in the main thread, and nothing without one."""

import math
import signal
import threading
import time

import pytest

from autotune.run.deadline import Deadline, OutOfTime


def test_a_block_is_cut_when_only_what_is_kept_is_left() -> None:
    deadline = Deadline(total_s=10.2)
    began = time.monotonic()
    with pytest.raises(OutOfTime), deadline.cuts(keep_s=10.0):
        time.sleep(30)
    assert time.monotonic() - began < 5
    assert 9 < deadline.left_s < 10.1


def test_a_block_that_ends_in_time_leaves_nothing_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with Deadline(total_s=0.3).cuts():
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_time_that_is_over_cuts_at_once() -> None:
    with pytest.raises(OutOfTime), Deadline(total_s=0.001).cuts(keep_s=5.0):
        time.sleep(30)


def test_without_a_total_there_is_no_end() -> None:
    deadline = Deadline()
    assert deadline.left_s == math.inf
    with deadline.cuts():
        time.sleep(0.01)


def test_another_thread_is_not_cut() -> None:
    ended = []

    def work() -> None:
        with Deadline(total_s=0.01).cuts():
            time.sleep(0.1)
            ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]
