"""Signals: an exception at once, or after what must not be cut in two."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vitreous import interrupt
from vitreous.interrupt import Interrupted, interruptible, open_signal_pipe, received_signal, uninterrupted


def test_a_signal_is_an_exception():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with pytest.raises(Interrupted) as error, interruptible():
            os.kill(os.getpid(), number)
        assert error.value.number == number == received_signal()


def test_it_waits_for_the_end_of_what_must_not_be_cut():
    done = []

    def work():
        with uninterrupted():
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("never")

    with pytest.raises(Interrupted), interruptible():
        work()
    assert done == ["inner", "outer"]


def test_an_error_within_stays_that_error():
    def work():
        os.kill(os.getpid(), signal.SIGTERM)
        raise KeyError

    with pytest.raises(KeyError), interruptible(), uninterrupted():
        work()


def test_the_same_signal_twice_at_once_is_one_and_whoever_caught_it_may_save(monkeypatch):
    monkeypatch.setattr(interrupt, "time", SimpleNamespace(monotonic=lambda: 0.0))
    done = []
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
            with uninterrupted():
                done.append("saved")
    assert done == ["saved"]


def test_handlers_are_as_before_and_what_was_ignored_stays_ignored():
    before, term = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is term
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_ends_at_once():
    code = """
import os, signal, time
from types import SimpleNamespace
from vitreous import interrupt
interrupt.time = SimpleNamespace(monotonic=iter([0.0, interrupt.ECHO_SECONDS + 0.1]).__next__)
with interrupt.interruptible(), interrupt.uninterrupted():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == -signal.SIGTERM


@pytest.mark.parametrize("tidying", ["__del__", "weak reference"])
def test_a_signal_that_comes_where_python_drops_exceptions_is_neither_printed_nor_lost(tidying):
    """Without care Python prints "Exception ignored in ..." with a traceback, and the command goes on to its end."""
    code = f"""
import os, signal, time, weakref
from vitreous.interrupt import Interrupted, interruptible

class Thing:
    pass

def die(_):
    os.kill(os.getpid(), signal.SIGTERM)

if {tidying!r} == "__del__":
    Thing.__del__ = die
thing = Thing()
watched = weakref.ref(thing, die if {tidying!r} != "__del__" else None)
try:
    with interruptible():
        del thing
        time.sleep(600)
except Interrupted:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_other_errors_of_tidying_up_are_told_as_ever():
    code = """
from vitreous.interrupt import interruptible

class Thing:
    def __del__(self):
        raise KeyError("lost")

with interruptible():
    Thing()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True, check=True)
    assert "KeyError: 'lost'" in done.stderr


def test_another_thread_can_read_the_signals_of_this_process_and_of_no_child():
    assert open_signal_pipe() is None
    with interruptible(), uninterrupted():
        pipe = open_signal_pipe()
        try:
            if (child := os.fork()) == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(received_signal())
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == signal.SIGTERM, "the child has heard it"
            with pytest.raises(BlockingIOError):
                os.read(pipe, 1)
            os.kill(os.getpid(), signal.SIGINT)
            assert os.read(pipe, 8) == bytes([signal.SIGINT])
        finally:
            signal.set_wakeup_fd(-1)
            interrupt._state.raised = True  # so that the test does not end by it
