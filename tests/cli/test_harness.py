"""The instrument itself: it must notice what it is there to notice."""

import os
import signal
import time

import pytest

from support.commands import MB, check_ended_well, check_refused, run_command

pytestmark = pytest.mark.slow
SLEEP = "import time; time.sleep(600)"
BUSY = r"\d\.\d s"
FAULTS = {
    "still running": SLEEP,
    "KeyError": "raise KeyError('x')",
    "[23].. MB": "x = bytearray(300 * 2**20); x[::4096] = bytes(len(x[::4096]))",
    "left behind": f"import os; os.fork() or exec({SLEEP!r})",
    BUSY: "import time\nwhile time.process_time() < 0.25: pass",
}


@pytest.mark.parametrize("way", ["processes", "run_command"])
def test_a_refusal_is_told_from_an_answer(request, way):
    run = run_command if way == "run_command" else request.getfixturevalue("processes")
    check_refused(run("predict", "nowhere", "nothing.jpg"), "nowhere")
    outcome = run("models")
    check_ended_well(outcome, seconds=5, memory=200 * MB)
    assert "Ti/16" in outcome.stdout
    with pytest.raises(AssertionError):
        check_refused(outcome)


def check_noticed(outcome, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_ended_well(outcome, seconds=0.2 if complaint == BUSY else 20, memory=200 * MB)


def test_what_is_wrong_in_a_process_is_noticed(subtests, processes):
    for complaint, code in FAULTS.items():
        with subtests.test(complaint):
            limit = 2 if complaint == "still running" else 120
            check_noticed(processes(code=code, limit=limit, grace=1), complaint)


def test_what_is_wrong_in_this_process_is_noticed(subtests, monkeypatch):
    left = []
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: left.append(fork()) or left[-1])
    for complaint, code in FAULTS.items():
        with subtests.test(complaint), monkeypatch.context() as patch:
            code = code.replace("process_time() < ", f"process_time() < {time.process_time()} + ")
            patch.setattr("vitreous.cli._run", lambda args, code=code: exec(code, {}))
            limit = 1 if complaint == "still running" else 120
            check_noticed(run_command("models", limit=limit), complaint)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
