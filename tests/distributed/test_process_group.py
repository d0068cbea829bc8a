"""Processes that torchrun starts: one speaks, and what ends one ends all, soon and in one sentence."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import product

import pytest
import torch
from torch.distributed import TCPStore

from support.ports import free_port
from support.together import draw_images, one_of_two, two_processes
from vitreous.cli import main
from vitreous.config.data import Augment, Preprocess
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.distributed import heartbeat
from vitreous.distributed.process_group import agree_on_id
from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.training import labelled


def fail_in_the_second(place):
    """In each of two processes: the second cannot open its data."""
    said = os.open(place / f"said-{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 2)
    if os.environ["RANK"] == "1":

        def gone(data):
            raise UserError("photos: not there on this machine; copy them.")

        labelled.open_dataset = gone
    main(["fit", str(place / "images.npz"), "--model", "Ti/4@16", "--epochs", "1", "--out", str(place / "run")])


@pytest.mark.slow
def test_an_error_in_one_process_ends_all_with_one_sentence(tmp_path):
    draw_images(tmp_path / "images.npz")
    statuses = two_processes(fail_in_the_second, tmp_path)
    assert statuses[1] == 2
    assert statuses[0] == 1
    said = [(tmp_path / f"said-{rank}").read_text() for rank in (0, 1)]
    sentences = [line for text in said for line in text.splitlines() if line.startswith("vitreous: ")]
    assert sentences == ["vitreous: photos: not there on this machine; copy them."]
    assert "Traceback" not in "".join(said)


LOST = 10
WORK = """
import sys, time
from vitreous.distributed import heartbeat, process_group
from vitreous.interrupt import Interrupted, interruptible, uninterrupted

heartbeat.INTERVAL_SECONDS, heartbeat.GRACE_SECONDS = 0.2, 1.0
heartbeat.LOST_SECONDS, heartbeat.RENDEZVOUS_SECONDS = map(float, sys.argv[2:])
try:
    with interruptible():
        world = process_group.join_world("cpu")
        print("joined", flush=True)
        exec(sys.argv[1])
except Interrupted as end:
    sys.exit(128 + end.number)
except RuntimeError as error:
    lost = process_group.announce_failure(error)
    sys.exit(f"vitreous: {lost}" if process_group.is_first_failure() else 1)
"""
MEET = "while True: world.any_rank(False); time.sleep(0.1)"
MISS = "world.any_rank(False) if world.rank else world.on_main(str)"


@contextmanager
def pair_of(work, **environment):
    """Two processes that have joined and then do this; they wait for ten seconds, not for twenty."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, work, str(LOST), "120"],
            env={**os.environ, **one_of_two(rank, port), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert [process.stdout.readline() for process in processes] == ["joined\n"] * 2
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture
def pair():
    """Two processes that meet again and again."""
    with pair_of(MEET) as processes:
        yield processes


def sentences(process):
    """What a process says until it ends, which it must within a minute."""
    return [line for line in process.communicate(timeout=60)[1].splitlines() if line.startswith("vitreous: ")]


@pytest.mark.slow
def test_processes_in_different_collectives_end_and_say_where_each_waits():
    with pair_of(MISS) as processes:
        (said,) = sentences(processes[0]) + sentences(processes[1])
        assert [process.returncode for process in processes] == [1, 1]
    assert re.search(r"process 0 (waits )?in broadcast_object_list at ", said)
    assert re.search(r"process 1 (waits )?in all_reduce at ", said)


@pytest.mark.slow
def test_a_debug_run_finds_it_before_anybody_waits():
    """Even where both go on, each with what the other meant for something else."""
    work = "import torch\nif world.rank: world.any_rank(True)\nelse: world.all_reduce_max(torch.ones(1).double())"
    with pair_of(work) as processes:
        assert [process.wait(60) for process in processes] == [0, 0]
    with pair_of(f"time.sleep(world.rank)\n{work}", VITREOUS_DEBUG_COLLECTIVES="1") as processes:
        said = processes[1].communicate(timeout=60)[1]
    assert "process 1 waits in all_reduce at <string>:3, process 0 in all_reduce at <string>:4" in said


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
def test_a_process_that_waits_for_another_ends_on_sigterm(held):
    """Within ten seconds, though its main thread is in C++, and with the signal's status; the other one lives."""
    wait = "\n with uninterrupted(): world.any_rank(False)" if held else "world.any_rank(False)"
    with pair_of(f"if world.rank: {wait}\nelse: time.sleep(600)") as processes:
        time.sleep(1)
        processes[1].send_signal(signal.SIGTERM)
        began = time.monotonic()
        (said,) = sentences(processes[1])
        assert time.monotonic() - began < 10
        assert processes[1].returncode == 128 + signal.SIGTERM
        assert processes[0].poll() is None
    assert "ended by SIGTERM" in said
    assert "all_reduce at " in said
    assert "process 0 " in said


def stop_one(pair, hung):
    """The sentence of the other process, which must end."""
    pair[hung].send_signal(signal.SIGSTOP)
    (said,) = sentences(pair[1 - hung])
    assert said.startswith("vitreous: process 1")
    assert f" {LOST} s" in said
    assert pair[1 - hung].returncode == 1
    return said


@pytest.mark.slow
def test_a_process_that_hangs_does_not_let_the_other_wait(pair):
    assert socket.gethostname() in stop_one(pair, hung=1)


@pytest.mark.slow
def test_the_end_of_a_process_without_a_message_is_told_by_the_other(pair):
    pair[1].kill()
    (said,) = sentences(pair[0])
    assert pair[0].returncode == 1
    assert f"process 1 on {socket.gethostname()} has ended" in said


@pytest.mark.exhaustive
def test_a_process_that_hangs_with_the_store_does_not_let_the_other_wait(pair):
    stop_one(pair, hung=0)


@pytest.mark.exhaustive
def test_processes_that_were_stopped_and_continued_have_missed_nothing(pair):
    """As by Ctrl-Z and fg; test_heartbeat.py shows that time is counted in waits."""
    for number, seconds in ((signal.SIGSTOP, 1.5 * LOST), (signal.SIGCONT, 2.0)):
        for process in pair:
            process.send_signal(number)
        time.sleep(seconds)
    assert [process.poll() for process in pair] == [None, None]
    stop_one(pair, hung=1)


@pytest.mark.slow
def test_a_store_that_takes_a_connection_and_says_nothing_is_not_waited_for():
    """As that of a process that was stopped: the kernel still answers for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-c", WORK, "", str(LOST), "3"],
            env={**os.environ, **one_of_two(1, port)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    (said,) = ended.stderr.splitlines()
    assert said.startswith("vitreous: process 1 of 2: ")
    assert f"127.0.0.1:{port}" in said
    assert " 3 s" in said


def test_every_rendezvous_has_an_id_of_its_own_whatever_the_store_holds():
    """torchrun's shared store outlives the processes; of two machines one may have counted a restart, one not."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    names = []
    for late in (1, 0, 2):
        with ThreadPoolExecutor(3) as pool:
            others = {}
            for rank in sorted(range(3), key=lambda rank, late=late: rank == late):
                if rank == late == 2:  # the first answers to what the last rendezvous left behind
                    answer = f"vitreous/id/{store.get('vitreous/nonce/2').decode()}"
                    end = time.monotonic() + 60
                    while store.get(answer).decode() == names[-1]:
                        assert time.monotonic() < end, "the first does not answer"
                        time.sleep(0.01)
                others[rank] = pool.submit(agree_on_id, store.clone(), rank, 3)
            found = {rank: future.result() for rank, future in others.items()}
        assert len(set(found.values())) == 1
        names.append(found[0])
    assert len(set(names)) == 3


def test_a_first_process_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(heartbeat, "RENDEZVOUS_SECONDS", 0.3)
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=0.3))
    with pytest.raises(TimeoutError, match="process 0 "):
        agree_on_id(store, 1, 2)


@pytest.fixture
def first_of_two(monkeypatch):
    for name, value in one_of_two(0, 1).items():
        monkeypatch.setenv(name, value)


def test_verbs_that_know_no_others_refuse(subtests, first_of_two, capfd):
    for verb in ("predict", "evaluate", "compare", "self-train", "models"):
        with subtests.test(verb=verb):
            with pytest.raises(SystemExit) as end:
                main([verb])
            assert end.value.code == 2
            assert re.match(rf"vitreous: {verb}: .*\b2\b", capfd.readouterr().err)


def test_all_but_the_first_are_silent(first_of_two, capfd, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as end:
        main(["models"])
    assert end.value.code == 2
    assert capfd.readouterr() == ("", "")


def test_a_batch_that_is_too_small_to_be_shared(tmp_path):
    source = open_data(draw_images(tmp_path / "images.npz")).train
    with pytest.raises(UserError, match=r"batch_size=6: 4 .*batch_size=8"):
        Loader(source, Preprocess(size=(16, 16)), Augment(mixup=0.2), batch_size=6, world=World(0, 4))


def test_processes_have_each_image_of_an_epoch_once_in_the_batches_of_one(subtests, tmp_path):
    """Whatever their number, side by side their parts are the batches that one process would have, to the bit."""
    source = open_data(draw_images(tmp_path / "images.npz")).train

    def batches(world, shuffle, mixup):
        augment = Augment(crop_scale=None, pad=2, mixup=mixup)
        loader = Loader(source, Preprocess(size=(16, 16)), augment, batch_size=13, shuffle=shuffle, world=world)
        return list(loader.batches(3))

    for processes, mixup, shuffle in product((2, 3), (0.0, 0.2), (True, False)):
        with subtests.test(processes=processes, mixup=mixup, shuffle=shuffle):
            whole = batches(World(), shuffle, mixup)
            parts = [batches(World(rank, processes), shuffle, mixup) for rank in range(processes)]
            if not shuffle:  # whole batches, in the order of ranks
                found = [batch for part in parts for batch in part]
                assert [batch.index.tolist() for batch in found] == [batch.index.tolist() for batch in whole]
                continue
            for step, batch in enumerate(whole):
                mine = [part[step] for part in parts]
                assert torch.cat([one.index for one in mine]).equal(batch.index)
                assert torch.cat([one.images for one in mine]).equal(batch.images)
                assert torch.cat([one.targets for one in mine]).equal(batch.targets)
