"""A machine that refuses: closed and full streams, few handles, addresses and processes, names that cannot be."""

import errno
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from support.commands import MB, SECONDS, check_ended_well, check_refused
from support.greys import draw_pictures, make_weights
from vitreous.cli.failures import explain_failure
from vitreous.cli.listening import listening
from vitreous.cli.terminal import Reminder
from vitreous.errors import MachineError, UserError


@pytest.fixture(scope="module")
def place():
    """Pictures and a model that anyone may read."""
    folder = Path(tempfile.mkdtemp())
    draw_pictures(folder / "pictures")
    make_weights(folder / "model")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "out").mkdir()
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def check_said(outcome, status, *names):
    """One sentence on standard error, with these words, and the status."""
    check_ended_well(outcome, seconds=20, memory=600 * MB)
    assert outcome.status == status, (outcome.status, outcome.stderr)
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith("vitreous: ")
    assert last.endswith(".")
    for name in names:
        assert name in last


MAIN = "\nfrom vitreous.cli import main; main({argv!r})"
CLOSE = "import os, sys; os.close({number}); sys.{name} = sys.__{name}__ = None\n"
CLOSED = {"stdout": CLOSE.format(number=1, name="stdout"), "stderr": CLOSE.format(number=2, name="stderr")}
COMMANDS = {
    "list": (["models"], 0),
    "help": (["--help"], 0),
    "help of a verb": (["fit", "--help"], 0),
    "predict": (["predict", "MODEL", "PICTURES"], 0),
    "mistake": (["predict", "nowhere", "PICTURES"], 2),
}


def filled(words, place):
    known = {"MODEL": place / "model", "PICTURES": place / "pictures", "PICTURE": place / "pictures/dark/0.png"}
    return [str(known.get(word, word)) for word in words]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stderr", "stdout")])
@pytest.mark.parametrize("how", ["closed", "full"])
def test_streams_that_take_nothing(processes, place, command, streams, how):
    argv, status = COMMANDS[command]
    argv = filled(argv, place)
    if how == "closed":
        outcome = processes(code="".join(CLOSED[name] for name in streams) + MAIN.format(argv=argv))
    else:
        outcome = processes(*argv, **{name: Path("/dev/full") for name in streams})
    check_ended_well(outcome, seconds=20, memory=600 * MB)
    assert outcome.status == (1 if "stdout" in streams and status == 0 else status)
    if streams == ("stdout",) and status == 0:
        check_said(outcome, 1, "standard output: cannot be written")


LIMIT = "import os, resource; resource.setrlimit(resource.{name}, ({value}, {value}))\n"


def test_few_file_handles(processes, place):
    for handles, words in ((12, "workers=2"), (4, "Too many open files")):
        argv = filled(["fit", "PICTURES", "--weights", "MODEL", "--out", place / "out/few", "--workers", "2"], place)
        code = LIMIT.format(name="RLIMIT_NOFILE", value=handles) + MAIN.format(argv=argv)
        outcome = processes(code=code)
        check_said(outcome, outcome.status, words)
        assert outcome.status in (1, 2)


@pytest.mark.parametrize("more", [1, 8, 32])
@pytest.mark.parametrize("verb", [["predict", "MODEL", "PICTURES"], ["probe", "MODEL", "PICTURES", "--workers", "0"]])
def test_little_address_space(processes, place, verb, more):
    taken = "int(open('/proc/self/statm').read().split()[0]) * 4096"
    code = LIMIT.format(name="RLIMIT_AS", value=f"{taken} + {more} * 2**20") + MAIN.format(argv=filled(verb, place))
    outcome = processes(code=code)
    check_ended_well(outcome, seconds=20, memory=600 * MB)
    assert outcome.status in (0, 1, 2)
    if outcome.status:
        check_said(outcome, outcome.status)
        assert re.search("memory|processes or threads", outcome.stderr)


def test_too_few_addresses_for_the_libraries(processes, place):
    code = LIMIT.format(name="RLIMIT_AS", value=500 * 10**6) + MAIN.format(argv=filled(["inspect", "PICTURES"], place))
    check_said(processes(code=code), 1, "500 MB of addresses", "ulimit -v")


def test_no_more_processes(processes, place):
    """The limit does not hold for root, so the command is run by nobody, who may not read Python's own files."""
    argv = filled(["fit", "PICTURES", "--weights", "MODEL", "--out", place / "out/run", "--workers", "2"], place)
    imports = "import multiprocessing.popen_fork, multiprocessing.sharedctypes; "
    nobody = imports + "os.getuid() or (os.setgid(65534), os.setuid(65534))"
    code = LIMIT.format(name="RLIMIT_NPROC", value=1) + nobody + MAIN.format(argv=argv)
    check_said(processes(code=code), 2, "workers=2: the system refuses another process", "give fewer, or 0")


def test_a_folder_that_was_deleted(processes, tmp_path, place):
    (tmp_path / "gone").mkdir()
    code = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd())"
    check_refused(processes(code=code + MAIN.format(argv=filled(["predict", "MODEL", "PICTURES"], place))), "deleted")


READERS = {
    "predict": ["predict", "NAME", "PICTURE"],
    "explain": ["explain", "MODEL", "NAME"],
    "explain by": ["explain", "NAME", "PICTURE"],
    "evaluate": ["evaluate", "MODEL", "NAME"],
    "probe": ["probe", "MODEL", "NAME"],
    "inspect": ["inspect", "NAME"],
    "fit": ["fit", "NAME"],
    "fit from": ["fit", "PICTURES", "--weights", "NAME"],
    "pretrain": ["pretrain", "NAME"],
    "compare": ["compare", "NAME", "--models", "Ti/16", "--budget", "9h"],
    "compare with": ["compare", "PICTURES", "--models", "NAME"],
    "transfer": ["transfer", "NAME", "--tasks", "PICTURES"],
    "transfer to": ["transfer", "MODEL", "--tasks", "NAME"],
    "self-train, labelled": ["self-train", "NAME", "PICTURES"],
    "self-train, unlabelled": ["self-train", "PICTURES", "NAME"],
    "self-train, teacher": ["self-train", "PICTURES", "builtin", "--teacher", "NAME"],
    "report": ["report", "NAME"],
    "walkthrough": ["walkthrough", "MODEL", "NAME"],
    "plot-weights": ["plot-weights", "NAME"],
    "score-explanations": ["score-explanations", "MODEL", "NAME"],
    "reconstruct": ["reconstruct", "NAME", "PICTURE"],
}


@pytest.mark.parametrize("case", READERS)
@pytest.mark.parametrize("name", ["x" * 5000, "loop", "y/" * 3000])
def test_names_that_cannot_be(processes, place, case, name):
    named = str(place / "loop") if name == "loop" else name
    argv = [named if word == "NAME" else word for word in filled(READERS[case], place)]
    outcome = processes(*argv, cwd=place / "out")
    if name == "loop" and case in ("explain", "walkthrough"):  # one of the pictures, which may be many
        check_ended_well(outcome, seconds=SECONDS, memory=200 * MB)
        assert (outcome.status, len(outcome.stderr.splitlines())) == (1, 1)
        assert "loop: cannot be opened" in outcome.stderr
        return
    check_refused(outcome, name[:3])


WORKERS = {
    "fit": ["fit", "PICTURES", "--weights", "MODEL"],
    "probe": ["probe", "MODEL", "PICTURES"],
    "analyze": ["analyze", "MODEL", "--data", "PICTURES", "--out", "analysis"],
    "compare": ["compare", "PICTURES", "--models", "Ti/16", "--budget", "9h"],
    "transfer": ["transfer", "MODEL", "--tasks", "PICTURES", "--protocol", "knn"],
    "analyze, bias": ["analyze", "MODEL", "--data", "PICTURES", "--what", "bias", "--out", "analysis"],
}


@pytest.mark.parametrize("case", WORKERS)
@pytest.mark.parametrize("workers", ["300", "100000000"])
def test_too_many_workers(processes, place, tmp_path, case, workers):
    words, env = filled(WORKERS[case], place), {"VITREOUS_CACHE": str(tmp_path / "cache")}
    check_refused(processes(*words, "--workers", workers, cwd=tmp_path, env=env), f"workers={workers}")
    assert not list(tmp_path.rglob("*.*"))


def failures():
    def of(function, *args):
        try:
            return function(*args)
        except Exception as error:
            return error

    yield of(torch.empty, 10**15), MachineError, "memory"
    yield of(np.empty, 10**15), MachineError, "memory"
    yield of(bytearray, 10**18), MachineError, "memory"
    yield MemoryError(), MachineError, "memory (MemoryError)"
    yield OSError(errno.EMFILE, "Too many open files"), MachineError, "ulimit -n"
    yield OSError(errno.ENOSPC, "No space left on device", "some/file"), MachineError, "some/file: the disk is full"
    yield RuntimeError("can't start new thread"), MachineError, "ulimit -u"
    yield ImportError("libx.so: failed to map segment from shared object"), MachineError, "memory"
    yield of(Path("z" * 5000).stat), UserError, "zzz...zzz"
    yield RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None, ""
    yield OSError(errno.EINVAL, "Invalid argument"), None, ""
    yield ImportError("cannot import name 'x'"), None, ""


@pytest.mark.parametrize(("error", "kind", "words"), list(failures()))
def test_what_the_machine_refuses_is_told_from_bugs(error, kind, words):
    found = explain_failure(error)
    assert type(found) is (kind or type(None))
    if kind is not None:
        assert words in str(found)
        assert len(str(found)) < 400


def test_a_log_is_reminded_after_a_while_and_then_once_a_minute():
    now = 0.0
    reminder = Reminder(lambda: now)
    seen = []
    for second in range(400):
        now = float(second)
        if reminder.due():
            seen.append((second, reminder.left(second, 1000)))
    assert [at for at, _ in seen] == [10, 30, 70, 130, 190, 250, 310, 370]
    assert seen[0][1] == ", about 16 min left"  # of 1,000, one a second
    assert seen[-1][1] == ", about 10 min left"


def test_what_is_left_is_unknown_when_something_else_is_counted():
    now = 0.0
    reminder = Reminder(lambda: now)
    assert reminder.left(0, 100, "pictures") == ""
    now = 10.0
    assert reminder.left(50, 100, "pictures") == ", about 10 s left"
    now = 20.0
    assert reminder.left(60, 100, "steps") == ""  # 60 steps are not ten more than 50 pictures
    now = 30.0
    assert reminder.left(70, 100, "steps") == ", about 30 s left"


def test_a_log_tells_how_many_pictures_were_looked_at(monkeypatch, capsys):
    monkeypatch.setattr("vitreous.cli.terminal.Reminder.due", lambda self: True)
    with listening() as listeners:
        listeners.look("looking at the test pictures", 1000, 4000)
        listeners.look("looking at the test pictures", 4000, 4000)  # then there is a result to read
    assert capsys.readouterr().err == "looking at the test pictures: 1,000 of 4,000\n"
