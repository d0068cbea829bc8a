"""The instrument itself: it must notice what it is there to notice."""

import pytest

from support.commands import MB, check_ended_well, check_refused


def test_a_refusal_is_one_sentence(processes):
    check_refused(processes("predict", "nowhere", "nothing.jpg"), "nowhere")


def test_an_answer_is_no_refusal(processes):
    outcome = processes("models")
    check_ended_well(outcome, seconds=5, memory=200 * MB)
    assert "Ti/16" in outcome.stdout
    with pytest.raises(AssertionError):
        check_refused(outcome)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import time; time.sleep(60)", "still running"),
        ("raise KeyError('x')", "KeyError"),
        ("x = bytearray(300 * 2**20); x[::4096] = bytes(len(x[::4096]))", "3.. MB"),
        ("import os, time; os.fork() or time.sleep(60)", "left behind"),
        ("import time\nwhile time.process_time() < 1.2: pass", "1.. s"),
    ],
)
def test_what_is_wrong_is_noticed(processes, code, complaint):
    limit = 2 if complaint == "still running" else 30
    outcome = processes(code=code, limit=limit, grace=1)
    with pytest.raises(AssertionError, match=complaint):
        check_ended_well(outcome, seconds=1 if complaint == "1.. s" else 20, memory=200 * MB)
