"""Which process failed first is settled once, whatever the main thread and the heartbeat's find in the same moment."""

import json
import signal
from types import SimpleNamespace

import pytest

from support.together import one_of_two
from vitreous.distributed import heartbeat as room
from vitreous.distributed import process_group
from vitreous.distributed.heartbeat import (
    FAILURE,
    GRACE_SECONDS,
    HEARTBEAT,
    INTERVAL_SECONDS,
    LEFT,
    LOST_SECONDS,
    RENDEZVOUS_SECONDS,
    SIGNAL_SECONDS,
    Collectives,
    Heartbeat,
    Position,
)
from vitreous.errors import MachineError, UserError


class Store:
    """A store in which something may happen whenever the heartbeat's thread has looked for a failure."""

    def __init__(self):
        self.values, self.meanwhile = {}, lambda: None

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        if keys == [FAILURE]:
            happens, self.meanwhile = self.meanwhile, lambda: None
            happens()
        return all(key in self.values for key in keys)

    def compare_set(self, key, expected, desired):
        value = self.values.setdefault(key, desired.encode())
        self.after_claim()
        return value

    def clone(self):
        return self

    def set_timeout(self, timeout):
        pass

    def after_claim(self):
        """Between the store's having the value and the caller's hearing of it."""

    def beat(self, rank, count, number=0, place="the start"):
        self.set(f"{HEARTBEAT}/{rank}", json.dumps([count, "host7", number, place]))


class Waits:
    """In place of an event: each wait ends at once, and is counted."""

    def __init__(self, happens=lambda waits: None):
        self.seconds, self.happens = 0.0, happens

    def wait(self, seconds):
        self.seconds += seconds
        return self.happens(self)

    def set(self):
        pass


def leave_process(status):
    raise SystemExit(status)


@pytest.fixture
def heartbeat(monkeypatch):
    """Of the second of two processes; no thread runs, no clock is read, and the process does not end."""
    for name, value in one_of_two(1, 1).items():
        monkeypatch.setenv(name, value)
    threads = SimpleNamespace(start=lambda: None, join=lambda seconds: None)
    monkeypatch.setattr(room, "Thread", lambda **given: threads)
    monkeypatch.setattr(room, "time", SimpleNamespace())
    monkeypatch.setattr(room, "collectives", Collectives())
    monkeypatch.setattr(room.os, "_exit", leave_process)
    made = Heartbeat(1, 2)
    made.store, made._thread, made._over = Store(), threads, Waits()
    room.time.sleep = made._over.wait
    return made


def test_a_failure_of_this_process_that_its_thread_sees_first_is_its_own(heartbeat):
    seen = []
    heartbeat.store.after_claim = lambda: seen.append((heartbeat._watch_previous(), heartbeat.failure[0]))
    heartbeat.claim_failure("the disk is full")
    assert seen == [(None, 1)], "the main thread says it, and ends"
    assert heartbeat.failure[0] == 1


def test_a_failure_that_was_claimed_meanwhile_is_not_taken_for_anothers(heartbeat):
    heartbeat.store.meanwhile = lambda: heartbeat.claim_failure("the disk is full")
    assert heartbeat._watch_previous() is None
    assert heartbeat.failure[0] == 1


def test_what_another_has_said_first_is_the_reason(heartbeat):
    heartbeat.store.set(FAILURE, "0 the disk is full")
    heartbeat.claim_failure("something that follows from it")
    assert heartbeat.failure[0] == 0
    heartbeat.failure = None
    assert heartbeat._watch_previous() == "the disk is full"
    assert heartbeat.failure[0] == 0
    assert heartbeat.poll_failure() == "the disk is full"


def test_without_an_answer_of_the_store_this_process_stays_the_first(heartbeat):
    """The store broke off in the claim, and is there again when the other thread asks."""

    def break_off():
        raise RuntimeError("Broken pipe")

    heartbeat.store.set(FAILURE, "0 the disk is full")
    heartbeat.store.after_claim = break_off
    heartbeat.store.meanwhile = lambda: heartbeat.claim_failure("no more memory")
    heartbeat._watch_previous()
    assert heartbeat.failure[0] == 1


def test_a_process_without_heartbeats_is_lost(heartbeat):
    heartbeat.store.beat(0, 5)
    reason = heartbeat._watch_previous()
    assert reason.startswith("process 0 on host7 ")
    assert f" {LOST_SECONDS:.0f} s" in reason
    assert heartbeat._over.seconds == LOST_SECONDS
    assert (heartbeat.failure, heartbeat.store.get(FAILURE)) == ((1, reason), f"1 {reason}".encode())


def test_how_long_a_process_may_be_silent_can_be_set(heartbeat, monkeypatch):
    monkeypatch.setattr(room.torch.accelerator, "is_available", lambda: True)
    assert Heartbeat(1, 2).lost_seconds == room.ACCELERATOR_LOST_SECONDS > LOST_SECONDS
    monkeypatch.setenv(room.TIMEOUT, "300")
    patient = Heartbeat(1, 2)
    patient.store, patient._over = heartbeat.store, heartbeat._over
    patient.store.beat(0, 5)
    assert " 300 s" in patient._watch_previous()
    assert patient._over.seconds == 300
    for wrong in ("soon", "1", "inf", ""):
        monkeypatch.setenv(room.TIMEOUT, wrong)
        with pytest.raises(UserError, match=room.TIMEOUT):
            Heartbeat(1, 2)


def test_a_process_that_never_came_is_named(heartbeat):
    reason = heartbeat._watch_previous()
    assert reason.startswith("process 1 of 2: ")
    assert "127.0.0.1:1 (process 0 " in reason
    assert heartbeat._over.seconds == RENDEZVOUS_SECONDS + INTERVAL_SECONDS / 2  # in whole intervals


def test_a_process_with_heartbeats_is_not_lost_however_long_it_takes(heartbeat):
    def beat(waits):
        heartbeat.store.beat(0, waits.seconds)
        return waits.seconds > 100 * LOST_SECONDS

    heartbeat._over.happens = beat
    assert heartbeat._watch_previous() is None
    assert heartbeat.failure is None


def test_a_store_that_does_not_answer_ends_the_process(heartbeat, capfd):
    with pytest.raises(SystemExit, match="1"):
        heartbeat._enforce_timeouts()
    assert capfd.readouterr().err.startswith("vitreous: process 1 of 2: ")
    assert heartbeat._over.seconds == RENDEZVOUS_SECONDS + GRACE_SECONDS
    heartbeat.start(heartbeat.store)
    heartbeat._over = Waits(lambda waits: True)  # the other thread asks once, and gets its answers
    heartbeat._watch_previous()
    heartbeat._over = Waits()
    with pytest.raises(SystemExit, match="1"):
        heartbeat._enforce_timeouts()
    assert f" {LOST_SECONDS:.0f} s" in capfd.readouterr().err
    assert heartbeat._over.seconds == LOST_SECONDS


def test_processes_in_different_collectives_are_noticed(heartbeat):
    """Only under the same number: one process may be ahead of the other."""
    room.collectives.entered = Position(7, "all_reduce at b.py:2")
    for number, place in ((6, "broadcast at a.py:1"), (7, "all_reduce at b.py:2")):
        heartbeat.store.beat(0, 1, number, place)
        heartbeat._over.happens = lambda waits: True
        assert heartbeat._watch_previous() is None
    heartbeat.store.beat(0, 1, 7, "broadcast at a.py:1")
    reason = heartbeat._watch_previous()
    assert "process 1 waits in all_reduce at b.py:2" in reason
    assert "process 0 in broadcast at a.py:1" in reason
    assert heartbeat.store.get(FAILURE).decode() == f"1 {reason}"


def test_a_debug_run_compares_every_collective(heartbeat):
    room.collectives.checker = heartbeat
    heartbeat.store.set("vitreous/collective/2", "0 broadcast at a.py:1")
    with room.collectives.enter("all_reduce"):
        assert room.collectives.waiting
    with pytest.raises(MachineError, match=r"process 1 waits in all_reduce at .*process 0 in broadcast at a.py:1"):
        room.collectives.enter("all_reduce").__enter__()
    assert not room.collectives.waiting


def test_a_process_that_waits_in_a_collective_ends_on_a_signal(heartbeat, monkeypatch, capfd):
    monkeypatch.setattr(room.os, "read", lambda file, count: bytes([signal.SIGCHLD, signal.SIGTERM]))
    heartbeat._signals, room.collectives.entered = -1, Position(7, "all_reduce at b.py:2")

    def finish_first(waits):  # the collective that was under way when the signal came ends, and another begins
        heartbeat._seconds_left = LOST_SECONDS
        room.collectives.waiting = waits.seconds > 10
        if waits.seconds == 20:
            room.collectives.entered = Position(8, "broadcast at a.py:1")

    heartbeat._over.happens = finish_first
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        heartbeat._enforce_timeouts()
    said = capfd.readouterr().err
    assert said.startswith("vitreous: process 1: ended by SIGTERM ")
    assert "all_reduce at b.py:2" in said
    assert "process 0 " in said
    assert 10 + SIGNAL_SECONDS <= heartbeat._over.seconds < 20


class TestFailuresOfOthers:
    """What ends this process may only follow from the end of another: that is asked of the others."""

    @pytest.fixture(autouse=True)
    def joined(self, heartbeat, monkeypatch):
        monkeypatch.setattr(process_group, "_heartbeat", heartbeat)
        heartbeat.store.beat(0, 5)

    def test_an_error_that_names_a_library_is_this_processes_own(self, heartbeat):
        """While the other process goes on."""
        heartbeat._over.happens = lambda waits: heartbeat.store.beat(0, 5 + waits.seconds)
        error = RuntimeError("photos/igloo/1.jpg: connection closed by the painter")
        assert process_group.announce_failure(error) is None
        assert heartbeat.store.get(FAILURE) == f"1 RuntimeError: {error}".encode()
        assert process_group.is_first_failure()

    def test_an_error_without_words_is_anothers_where_that_has_ended(self, heartbeat):
        found = process_group.announce_failure(RuntimeError("?"))
        assert isinstance(found, process_group.PeerFailedError)
        assert str(found).startswith("process 0 on host7 ")
        assert heartbeat._over.seconds == INTERVAL_SECONDS + GRACE_SECONDS

    def test_what_follows_from_a_failure_that_its_own_thread_found_is_that_failure(self, heartbeat):
        """The process that holds the store may have ended since."""
        heartbeat.claim_failure("process 1 waits elsewhere")
        heartbeat.store = None
        assert str(process_group.announce_failure(RuntimeError("Connection closed"))) == "process 1 waits elsewhere"
        assert process_group.is_first_failure()

    def test_a_process_that_left_is_not_waited_for(self, heartbeat):
        heartbeat.store.set(f"{LEFT}/0", "was ended by SIGTERM")
        assert "process 0 was ended by SIGTERM" in str(process_group.announce_failure(RuntimeError("?")))
        assert heartbeat._over.seconds == 0

    def test_a_user_error_is_not_asked_about(self, heartbeat):
        assert process_group.announce_failure(ValueError("gloo")) is None
        assert heartbeat._over.seconds == 0

    def test_a_collective_that_fails_among_the_living_is_told_in_a_sentence(self, heartbeat):
        heartbeat._over.happens = lambda waits: heartbeat.store.beat(0, 5 + waits.seconds)
        code = compile("raise RuntimeError('timed out')", process_group.distributed_c10d.__file__, "exec")
        with pytest.raises(RuntimeError) as raised:
            exec(code)
        assert "(timed out)" in str(process_group.announce_failure(raised.value))
