"""Who failed first is settled once, whatever the main thread and the watching one find in the same moment."""

from types import SimpleNamespace

import pytest

from support.together import one_of_two
from vitreous.distributed import watch as room
from vitreous.distributed.watch import BEAT, FAILURE, GRACE, JOINING, LOST, Failed, Watch


class Store:
    """A store in which something may happen whenever the watching thread has looked for a failure."""

    def __init__(self):
        self.words, self.meanwhile = {}, lambda: None

    def set(self, key, value):
        self.words[key] = value.encode()

    def get(self, key):
        return self.words[key]

    def check(self, keys):
        if keys == [FAILURE]:
            happens, self.meanwhile = self.meanwhile, lambda: None
            happens()
        return all(key in self.words for key in keys)

    def compare_set(self, key, expected, desired):
        value = self.words.setdefault(key, desired.encode())
        self.after_claim()
        return value

    def clone(self):
        return self

    def set_timeout(self, timeout):
        pass

    def after_claim(self):
        """Between the store's having the word and the claimant's hearing of it."""


@pytest.fixture
def watch(monkeypatch):
    for name, value in one_of_two(1, 1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(room, "Thread", lambda **given: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: 0.0))  # waits are counted, no clock is read
    made = Watch(1, 2)
    made.store = Store()
    return made


def test_a_failure_of_this_process_that_the_watching_thread_sees_first_is_its_own(watch):
    seen = []
    watch.store.after_claim = lambda: seen.append((watch._look_after(), watch.failed))
    watch.claim("the disk is full")
    assert seen == [(None, Failed.THIS)], "the main thread says it, and ends"
    assert watch.failed is Failed.THIS


def test_a_failure_that_was_claimed_meanwhile_is_not_taken_for_anothers(watch):
    watch.store.meanwhile = lambda: watch.claim("the disk is full")
    assert watch._look_after() is None
    assert watch.failed is Failed.THIS


def test_what_another_has_said_first_is_the_reason(watch):
    watch.store.set(FAILURE, "0 the disk is full")
    watch.claim("something that follows from it")
    assert watch.failed is Failed.ANOTHER
    watch.failed = Failed.NOBODY
    assert watch._look_after() == "the disk is full"
    assert watch.failed is Failed.ANOTHER
    assert watch.wait_for_reason() == "the disk is full"


def test_without_an_answer_of_the_store_this_process_stays_the_first(watch):
    """The store broke off in the claim, and is there again when the watching thread asks."""

    def break_off():
        raise RuntimeError("Broken pipe")

    watch.store.set(FAILURE, "0 the disk is full")
    watch.store.after_claim = break_off
    watch.store.meanwhile = lambda: watch.claim("no more memory")
    watch._look_after()
    assert watch.failed is Failed.THIS


class Waits:
    """In place of an event: each wait ends at once, and is counted."""

    def __init__(self, happens=lambda waits: None):
        self.seconds, self.happens = 0.0, happens

    def wait(self, seconds):
        self.seconds += seconds
        return self.happens(self)


def test_a_process_that_is_not_heard_of_any_more_is_lost(watch):
    watch._over = Waits()
    watch.store.set("vitreous/beat/0", "5 host7")
    reason = watch._look_after()
    assert reason.startswith("process 0 on host7 ")
    assert f" {LOST:.0f} s" in reason
    assert watch._over.seconds == LOST
    assert (watch.failed, watch.store.get(FAILURE)) == (Failed.THIS, f"1 {reason}".encode())


def test_a_process_that_never_came_is_named(watch):
    watch._over = Waits()
    reason = watch._look_after()
    assert reason.startswith("process 1 of 2: ")
    assert "127.0.0.1:1 (process 0 " in reason
    assert watch._over.seconds == JOINING + BEAT / 2  # in whole beats


def test_a_process_that_beats_is_not_lost_however_long_it_takes(watch):
    def beat(waits):
        watch.store.set("vitreous/beat/0", f"{waits.seconds} host7")
        return waits.seconds > 100 * LOST

    watch._over = Waits(beat)
    assert watch._look_after() is None
    assert watch.failed is Failed.NOBODY


def test_a_store_that_does_not_answer_ends_the_process(watch, monkeypatch):
    def leave(sentence):
        raise SystemExit(sentence)

    monkeypatch.setattr(room, "_exit", leave)
    watch._over = Waits()
    with pytest.raises(SystemExit, match="process 1 of 2: "):
        watch._count()
    assert watch._over.seconds == JOINING + GRACE
    watch.begin(watch.store)
    watch._over = Waits(lambda waits: True)  # the other thread looks once, and gets its answers
    watch._look_after()
    watch._over = Waits()
    with pytest.raises(SystemExit, match=f"process 1: .* {LOST:.0f} s"):
        watch._count()
    assert watch._over.seconds == LOST
