"""A machine that refuses: closed and full streams, few handles, addresses and processes, names that cannot be."""

import errno
import os
import re
import shutil
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from support.commands import MB, SECONDS, check_ended_well, check_refused, run_command
from support.greys import draw_images, make_weights
from vitreous.cli.failures import explain_failure
from vitreous.cli.terminal import LogInterval, shown_progress
from vitreous.errors import MachineError, UserError


@pytest.fixture(scope="module")
def place():
    """Images and a model that anyone may read."""
    folder = Path(tempfile.mkdtemp())
    draw_images(folder / "images")
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
    "predict": (["predict", "MODEL", "IMAGES"], 0),
    "mistake": (["predict", "nowhere", "IMAGES"], 2),
}


def filled(words, place):
    known = {"MODEL": place / "model", "IMAGES": place / "images", "IMAGE": place / "images/dark/0.png"}
    return [str(known.get(word, word)) for word in words]


@pytest.mark.parametrize("how", ["closed", "full"])
def test_streams_that_take_nothing(subtests, processes, place, how):
    for (command, (words, status)), streams in product(
        COMMANDS.items(), (("stdout",), ("stderr",), ("stderr", "stdout"))
    ):
        with subtests.test(command, streams=streams):
            argv = filled(words, place)
            if how == "closed":
                outcome = processes(code="".join(CLOSED[name] for name in streams) + MAIN.format(argv=argv))
            else:
                outcome = processes(*argv, **{name: Path("/dev/full") for name in streams})
            check_ended_well(outcome, seconds=20, memory=600 * MB)
            assert outcome.status == (1 if "stdout" in streams and status == 0 else status)
            if streams == ("stdout",) and status == 0:
                check_said(outcome, 1, "standard output: ")


UNREAD = "import os; read, write = os.pipe(); os.close(read); os.dup2(write, 1); os.close(write)\n"
"""As after `| head -1`: whoever read the output has gone."""


def test_output_that_nobody_reads_any_more(subtests, processes, place):
    for words in (["models"], ["data", "list"], ["--help"], ["fit", "--help"], ["predict", "MODEL", "IMAGES"]):
        with subtests.test(" ".join(words)):
            outcome = processes(code=UNREAD + MAIN.format(argv=filled(words, place)))
            check_ended_well(outcome, seconds=20, memory=600 * MB)
            assert outcome.status == 141, outcome.stderr


LIMIT = "import os, resource; resource.setrlimit(resource.{name}, ({value}, {value}))\n"


def test_few_file_handles(processes, place):
    argv = filled(["fit", "IMAGES", "--weights", "MODEL", "--out", place / "out/few", "--workers", "2"], place)
    for handles, name in ((12, "workers=2"), (4, os.strerror(errno.EMFILE))):
        outcome = processes(code=LIMIT.format(name="RLIMIT_NOFILE", value=handles) + MAIN.format(argv=argv))
        check_said(outcome, outcome.status, name)
        assert outcome.status in (1, 2)


def test_little_address_space(subtests, processes, place):
    taken = "int(open('/proc/self/statm').read().split()[0]) * 4096"
    for verb, more in product(("predict MODEL IMAGES", "probe MODEL IMAGES --workers 0"), (1, 8, 32)):
        with subtests.test(verb, more=more):
            limit = LIMIT.format(name="RLIMIT_AS", value=f"{taken} + {more} * 2**20")
            outcome = processes(code=limit + MAIN.format(argv=filled(verb.split(), place)))
            check_ended_well(outcome, seconds=20, memory=600 * MB)
            assert outcome.status in (0, 1, 2)
            if outcome.status:
                check_said(outcome, outcome.status)


def test_too_few_addresses_for_the_libraries(processes, place):
    code = LIMIT.format(name="RLIMIT_AS", value=500 * 10**6) + MAIN.format(argv=filled(["inspect", "IMAGES"], place))
    check_said(processes(code=code), 1, "500 MB", "ulimit -v")


def test_no_more_processes(processes, place):
    """The limit does not hold for root, so the command is run by nobody, who may not read Python's own files."""
    argv = filled(["fit", "IMAGES", "--weights", "MODEL", "--out", place / "out/run", "--workers", "2"], place)
    imports = "import multiprocessing.popen_fork, multiprocessing.sharedctypes; "
    nobody = imports + "os.getuid() or (os.setgid(65534), os.setuid(65534))"
    code = LIMIT.format(name="RLIMIT_NPROC", value=1) + nobody + MAIN.format(argv=argv)
    check_said(processes(code=code), 2, "workers=2")


def test_a_folder_that_was_deleted(processes, tmp_path, place):
    (tmp_path / "gone").mkdir()
    code = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd())"
    check_refused(processes(code=code + MAIN.format(argv=filled(["predict", "MODEL", "IMAGES"], place))))


READERS = {
    "predict": ["predict", "NAME", "IMAGE"],
    "explain": ["explain", "MODEL", "NAME"],
    "explain by": ["explain", "NAME", "IMAGE"],
    "evaluate": ["evaluate", "MODEL", "NAME"],
    "probe": ["probe", "MODEL", "NAME"],
    "inspect": ["inspect", "NAME"],
    "fit": ["fit", "NAME"],
    "fit from": ["fit", "IMAGES", "--weights", "NAME"],
    "pretrain": ["pretrain", "NAME"],
    "compare": ["compare", "NAME", "--models", "Ti/16", "--budget", "9h"],
    "compare with": ["compare", "IMAGES", "--models", "NAME"],
    "transfer": ["transfer", "NAME", "--tasks", "IMAGES"],
    "transfer to": ["transfer", "MODEL", "--tasks", "NAME"],
    "self-train, labelled": ["self-train", "NAME", "IMAGES"],
    "self-train, unlabelled": ["self-train", "IMAGES", "NAME"],
    "self-train, teacher": ["self-train", "IMAGES", "builtin", "--teacher", "NAME"],
    "report": ["report", "NAME"],
    "walkthrough": ["walkthrough", "MODEL", "NAME"],
    "plot-weights": ["plot-weights", "NAME"],
    "score-explanations": ["score-explanations", "MODEL", "NAME"],
    "reconstruct": ["reconstruct", "NAME", "IMAGE"],
}


def test_names_that_cannot_be(subtests, place):
    for (case, words), name in product(READERS.items(), ("x" * 5000, str(place / "loop"), "y/" * 3000)):
        with subtests.test(case, name=name[-4:]):
            outcome = run_command(
                *(name if word == "NAME" else word for word in filled(words, place)), cwd=place / "out"
            )
            if name.endswith("loop") and case in ("explain", "walkthrough"):  # one image of what may be many
                check_ended_well(outcome, seconds=SECONDS, memory=200 * MB)
                assert (outcome.status, len(outcome.stderr.splitlines())) == (1, 1)
                assert "loop: " in outcome.stderr
            else:
                check_refused(outcome, "loop" if name.endswith("loop") else name[:3])


WORKERS = {
    "fit": ["fit", "IMAGES", "--weights", "MODEL"],
    "probe": ["probe", "MODEL", "IMAGES"],
    "analyze": ["analyze", "MODEL", "--data", "IMAGES", "--out", "analysis"],
    "compare": ["compare", "IMAGES", "--models", "Ti/16", "--budget", "9h"],
    "transfer": ["transfer", "MODEL", "--tasks", "IMAGES", "--protocols", "knn"],
    "analyze, bias": ["analyze", "MODEL", "--data", "IMAGES", "--what", "bias", "--out", "analysis"],
}


def test_too_many_workers(subtests, place, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    for (case, words), workers in product(WORKERS.items(), ("300", "100000000")):
        with subtests.test(case, workers=workers):
            outcome = run_command(*filled(words, place), "--workers", workers, cwd=tmp_path)
            check_refused(outcome, f"workers={workers}")
            assert not list(tmp_path.rglob("*.*"))


def raised(function, *args):
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


def test_what_the_machine_refuses_is_told_from_bugs(subtests):
    handles, disk = OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOSPC, "No space left", "some/file")
    refused = {
        "memory, torch": (raised(torch.empty, 10**15), MachineError, "00000000000"),
        "memory, NumPy": (raised(np.empty, 10**15), MachineError, "1000000000000000"),
        "memory, Python": (raised(bytearray, 10**18), MachineError, ""),
        "memory, a library": (ImportError("libx.so: failed to map segment"), MachineError, "libx.so"),
        "handles": (handles, MachineError, "-n"),
        "disk": (disk, MachineError, "some/file: "),
        "threads": (RuntimeError("can't start new thread"), MachineError, "-u"),
        "a long name": (raised(Path("z" * 5000).stat), UserError, "zzz...zzz"),
    }
    remedies = {}
    for case, (error, kind, name) in refused.items():
        with subtests.test(case):
            found = explain_failure(error)
            assert type(found) is kind
            assert name in str(found)
            assert len(str(found)) < 400
            remedies.setdefault(str(found).rpartition(";")[2], []).append(case)
    assert [len(cases) for cases in remedies.values()] == [4, 1, 1, 1, 1], "each is told what helps"
    for bug in (RuntimeError("mat1 and mat2 shapes"), OSError(errno.EINVAL, "Invalid"), ImportError("cannot import x")):
        assert explain_failure(bug) is None


def test_a_log_is_reminded_after_a_while_and_then_once_a_minute():
    now = 0.0
    reminder = LogInterval(lambda: now)
    seen = []
    for second in range(400):
        now = float(second)
        if reminder.due():
            seen.append((second, reminder.left(second, 1000)))
    assert [at for at, _ in seen] == [10, 30, 70, 130, 190, 250, 310, 370]
    assert "16 min" in seen[0][1]  # of 1,000, one a second
    assert "10 min" in seen[-1][1]


def test_what_is_left_is_unknown_when_something_else_is_counted():
    now = 0.0
    reminder = LogInterval(lambda: now)
    assert reminder.left(0, 100, "images") == ""
    now = 10.0
    assert reminder.left(50, 100, "images").split()[-3:-1] == ["10", "s"]
    now = 20.0
    assert reminder.left(60, 100, "steps") == ""  # 60 steps are not ten more than 50 images
    now = 30.0
    assert reminder.left(70, 100, "steps").split()[-3:-1] == ["30", "s"]


def test_a_log_tells_how_many_images_were_looked_at(monkeypatch, capsys):
    monkeypatch.setattr("vitreous.cli.terminal.LogInterval.due", lambda self: True)
    with shown_progress() as callbacks:
        callbacks.progress("looking at the test images", 1000, 4000)
        callbacks.progress("looking at the test images", 4000, 4000)  # then there is a result to read
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("looking at the test images: ")
    assert re.findall("[0-9,]+", line) == ["1,000", "4,000"]
