"""The processes that make batches: whatever happens to them, the same results come, and none is left behind."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from support.images import make_tree, noise
from vitreous.config.data import Augment, Preprocess
from vitreous.data import workers
from vitreous.data.collate import ImageCache
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.opening import open_data
from vitreous.data.workers import MAX_DEATHS, TASKS_PER_WORKER, WorkerPool, WorkersDiedError, extend_heartbeat
from vitreous.errors import UserError


def doubled(task):
    """A large result, more than a pipe holds."""
    return np.full(100_000, 2 * task)


@pytest.fixture
def pool():
    made = WorkerPool(doubled, 2)
    yield made
    made.close()


def pids(pool):
    return [worker.process.pid for worker in pool._workers]


def gone(pid):
    """Whether the process has ended; one that nobody has asked for its status yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def eventually(question, seconds=60.0):
    end = time.monotonic() + seconds
    while not question() and time.monotonic() < end:
        time.sleep(0.01)
    return question()


def test_results_come_in_the_order_of_the_tasks(pool):
    assert [made[0] for made in pool.run(range(20))] == list(range(0, 40, 2))
    first = pids(pool)
    assert [made[0] for made in pool.run([5])] == [10]
    assert pids(pool) == first  # they live on


@pytest.mark.parametrize("when", [0, 3, 9])
def test_a_worker_that_is_killed_is_replaced(pool, when):
    found = []
    for made in pool.run(range(20)):
        if len(found) in (when, when + 5):
            os.kill(pids(pool)[0], signal.SIGKILL)
        found.append(made[0])
    assert found == list(range(0, 40, 2))


def test_all_workers_killed_at_once(pool):
    results = pool.run(range(10))
    found = [next(results)[0]]
    for pid in pids(pool):
        os.kill(pid, signal.SIGKILL)
    assert found + [made[0] for made in results] == list(range(0, 20, 2))


def test_workers_leave_signals_to_their_parent(pool):
    results = pool.run(range(12))
    found = [next(results)[0]]
    before = pids(pool)
    for pid in before:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    assert found + [made[0] for made in results] == list(range(0, 24, 2))
    assert pids(pool) == before


def test_those_that_always_die_are_given_up():
    def die(task):
        os.kill(os.getpid(), signal.SIGKILL)

    pool = WorkerPool(die, 1)
    with pytest.raises(WorkersDiedError, match="SIGKILL") as error:
        list(pool.run(["poison", "other"]))
    assert error.value.task == "poison"
    assert not pool._workers
    assert MAX_DEATHS < 10


class Stalls:
    """What the pool hears of its processes: those that called `stall` use no processor time, all others do.

    So a process that waits for a busy machine is not taken for one that hangs. `delay(n)`: looks at the nth that
    stalled in which it still seems to work.
    """

    def __init__(self, folder, monkeypatch, delay=lambda number: 0):
        self.folder, self.delay, self.looks, self.ticks = folder, delay, {}, count()
        folder.mkdir()
        monkeypatch.setattr(workers, "CHECK_SECONDS", 0.02)
        monkeypatch.setattr(workers, "_processor_ticks", self.processor_ticks)

    def stall(self):
        (self.folder / str(os.getpid())).touch()
        time.sleep(600)

    def processor_ticks(self, pid):
        if not (self.folder / str(pid)).exists():
            return next(self.ticks)
        self.looks.setdefault(pid, 0)
        self.looks[pid] += 1
        number = list(self.looks).index(pid)
        return -1 if self.looks[pid] > self.delay(number) else next(self.ticks)


@pytest.mark.parametrize("says_so", [True, False])
def test_one_that_does_nothing_is_killed_unless_it_says_that_it_waits(tmp_path, monkeypatch, says_so):
    """As one that waits for a server does."""
    stalls = Stalls(tmp_path / "stalled", monkeypatch)
    monkeypatch.setattr(workers, "HANG_SECONDS", 0.1)

    def wait(task):
        if says_so:
            extend_heartbeat(3600.0)
            (tmp_path / "stalled" / str(os.getpid())).touch()
            time.sleep(1.0)  # ten times as long as it may do nothing
        else:
            stalls.stall()
        return task

    with closing(WorkerPool(wait, 1)) as pool:
        if says_so:
            assert list(pool.run([1])) == [1]
        else:
            with pytest.raises(WorkersDiedError, match="SIGKILL"):
                list(pool.run([1]))


def test_processor_time_of_a_process():
    before = workers._processor_ticks(os.getpid())
    busy_until = time.process_time() + 0.05
    while time.process_time() < busy_until:
        pass
    assert workers._processor_ticks(os.getpid()) > before
    assert workers._processor_ticks(2**30) is None


def test_one_that_stalls_is_noticed_before_the_others_have_made_everything(tmp_path, monkeypatch):
    stalls = Stalls(tmp_path / "stalled", monkeypatch)
    monkeypatch.setattr(workers, "HANG_SECONDS", 0.1)
    (tmp_path / "begun").mkdir()

    def stall_once(task):
        begun_before = (tmp_path / "begun" / str(task)).exists()
        (tmp_path / "begun" / str(task)).touch()
        if task == 0 and not begun_before:
            stalls.stall()
        return task, len(list((tmp_path / "begun").iterdir()))

    with closing(WorkerPool(stall_once, 2)) as pool:
        results = list(pool.run(range(100)))
    assert [task for task, _ in results] == list(range(100))
    assert results[0][1] <= 2 * TASKS_PER_WORKER * 2, "tasks begun when the first was made after all"


def test_a_disk_that_stalls_all_of_them_counts_as_one_death(tmp_path, monkeypatch):
    """They are killed one look after the other, all within `HANG_SECONDS` of a clock that every look puts forward."""
    number = MAX_DEATHS + 1
    seconds = count(step=workers.HANG_SECONDS / (2 * number**2))  # one look at all takes HANG_SECONDS / (2 * number)
    stalls = Stalls(tmp_path / "stalled", monkeypatch, delay=lambda number: number)
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: next(seconds)))

    def stall_once(task):
        (tmp_path / f"process {os.getpid()}").touch()
        if not (tmp_path / str(task)).exists():
            (tmp_path / str(task)).touch()
            while len(list(tmp_path.glob("process *"))) < number:  # so that all have begun before one is killed
                time.sleep(0.01)
            stalls.stall()
        while len(list(tmp_path.glob("process *"))) < 2 * number:  # no result before the last of them is replaced
            time.sleep(0.01)
        return task

    with closing(WorkerPool(stall_once, number)) as pool:
        assert list(pool.run(range(number))) == list(range(number))
    assert len(list((tmp_path / "stalled").iterdir())) == number


def test_a_mistake_in_a_worker_is_raised_as_it_is():
    def refuse(task):
        raise UserError(f"task={task}.")

    pool = WorkerPool(refuse, 2)
    with pytest.raises(UserError) as error:
        list(pool.run([7]))
    assert str(error.value) == "task=7."
    assert "in refuse" in error.value.__notes__[0]
    assert not pool._workers


def test_an_error_that_cannot_travel_is_told_of():
    class LocalError(Exception):
        pass

    def fail(task):
        raise LocalError("here")

    with pytest.raises(RuntimeError, match="LocalError: here"):
        list(WorkerPool(fail, 1).run([1]))


def test_what_was_begun_and_left_disturbs_nobody(pool):
    left = pool.run(range(20))
    next(left)
    assert [made[0] for made in pool.run([50, 51])] == [100, 102]
    assert next(left)[0] == 2  # two at once
    left.close()
    assert not pool._results
    assert [made[0] for made in pool.run([60])] == [120]


def test_an_error_that_nobody_wants_any_more_is_dropped(tmp_path):
    def fail(task):
        if task == "bad":
            while not (tmp_path / "dropped").exists():
                time.sleep(0.01)
            raise UserError("bad: no.")
        return task

    with closing(WorkerPool(fail, 1)) as pool:
        left = pool.run(["good", "bad"])
        assert next(left) == "good"
        left.close()
        (tmp_path / "dropped").touch()
        assert list(pool.run(["next"])) == ["next"]


def test_closed_in_between_it_starts_again(pool):
    results = pool.run(range(9))
    found = [next(results)[0], next(results)[0]]
    before = pids(pool)
    pool.close()
    assert all(map(gone, before))
    assert found + [made[0] for made in results] == list(range(0, 18, 2))


def test_no_more_is_made_than_is_soon_wanted(tmp_path):
    def note(task):
        (tmp_path / str(task)).touch()
        return task + 1

    pool = WorkerPool(note, 2)
    results = pool.run(range(50))
    next(results)
    assert eventually(lambda: len(list(tmp_path.iterdir())) == pool._number), "all that was handed out is made"
    assert pool._number <= 2 * TASKS_PER_WORKER * 2
    assert all(len(worker.tasks) <= TASKS_PER_WORKER for worker in pool._workers)
    pool.close()


PARENT = """
import time
from vitreous.data.workers import WorkerPool
pool = WorkerPool(lambda task: time.sleep(task), 2)
results = pool.run([0, 600, 600])
try: next(results)
except AssertionError: pass  # it made nothing of the first
print(*[w.process.pid for w in pool._workers], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["busy", "idle", "ended"])
def test_no_worker_outlives_its_parent(how):
    code = PARENT.replace("lambda task: time.sleep(task)", "lambda task: time.sleep(task) or 1")
    code = code if how != "idle" else code.replace("600, 600]", "0]")
    code = code if how != "ended" else code.replace("time.sleep(600)\n", "")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        if how != "ended":
            parent.kill()
        assert parent.wait(120) == (0 if how == "ended" else -signal.SIGKILL)
    assert eventually(lambda: all(map(gone, workers)))


def test_a_process_that_dies_with_the_caches_lock_gives_it_back():
    cache = ImageCache(2, 10_000)
    child = os.fork()
    if child == 0:
        fcntl.lockf(cache._file, fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    cache.put(1, noise(5, 7, seed=1), (0.0, 0.0, 1.0, 1.0))
    assert cache.get(1) is not None


def test_batches_are_the_same_where_workers_die(tmp_path):
    source = open_data(make_tree(tmp_path, {"a": 20, "b": 20}, ".jpg")).train
    ways = {"preprocess": Preprocess(size=(32, 32)), "augment": Augment(), "batch_size": 4}
    expected = [batch.images.numpy().tobytes() for batch in Loader(source, **ways).batches(1)]
    loader = Loader(source, **ways, workers=2)
    found = []
    for batch in loader.batches(1):
        os.kill(pids(loader._processes)[len(found) % 2], signal.SIGKILL)
        found.append(batch.images.numpy().tobytes())
    loader.close()
    assert found == expected


def test_a_image_that_kills_its_reader_is_named(tmp_path, monkeypatch):
    source = open_data(make_tree(tmp_path, {"a": 4, "b": 4}, ".jpg")).train
    monkeypatch.setattr(type(source), "read", lambda *_, **__: os.kill(os.getpid(), signal.SIGXCPU))
    loader = Loader(source, Preprocess(size=(32, 32)), batch_size=4, workers=1)
    with pytest.raises(UserError, match=r"workers=1: .*SIGXCPU.*a/000\.jpg.*a/003\.jpg"):
        list(loader.batches())


def test_a_system_without_room_for_processes(monkeypatch, tmp_path):
    source = open_data(make_tree(tmp_path, {"a": 4, "b": 4}, ".jpg")).train

    def refuse(*_):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", refuse)
    loader = Loader(source, Preprocess(size=(32, 32)), batch_size=4, workers=3)
    with pytest.raises(UserError, match=r"workers=3: .* 0"):
        list(loader.batches())


def test_more_workers_than_make_sense_are_refused(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("vitreous.memory.available_memory", lambda: 10**11)
    assert choose_workers(16) == 16
    for asked in (17, 300, 10**9, -1):
        with pytest.raises(UserError, match=rf"workers={asked}: .* 2 .* 0 .* 16"):
            choose_workers(asked)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert choose_workers(256) == 256
    monkeypatch.setattr("vitreous.memory.available_memory", lambda: 10**9)
    with pytest.raises(UserError, match=r"workers=200: .* 13 .* 1\.0 "):
        choose_workers(200)
