"""Run a command in this process (`run_command`) or in one of its own (`Processes`); what a refusal must look like."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.zygote import import_jobs, memory
from vitreous.cli import main
from vitreous.memory import trim_memory

ZYGOTE = Path(__file__).with_name("zygote.py")
SECONDS = 3.0
MB = 2**20


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    """Of processor time, its children included where it ran in a process of its own; the clock says little."""
    peak: int
    """Bytes of memory beyond what the imported package takes."""
    timed_out: bool
    left: tuple[int, ...]
    """Processes that outlived it."""


class HangError(BaseException):
    """A command that does not end; no handler of the package catches it."""


def run_command(*argv: object, cwd: Path | None = None, limit: int = 120) -> Outcome:
    """What `vitreous ARGV` does, in this process: milliseconds where a process of its own takes a tenth of a second.

    For commands that are refused, or that do little. `Processes` is for signals, closed streams, few handles or little
    memory, and for commands that may take the process with them. After `limit` seconds a hanging command is ended.
    """

    def end(number: int, frame: object) -> None:
        raise HangError

    _import_jobs()
    stdout, stderr = io.StringIO(), io.StringIO()
    children, before = _children(), _restart_peak()
    started, handler = time.process_time(), signal.signal(signal.SIGALRM, end)
    status, timed_out = 0, False
    signal.alarm(limit)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr), chdir(cwd or Path.cwd()):
            main([str(arg) for arg in argv])
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except HangError:
        timed_out = True
    except BaseException:  # what a person would see as a traceback
        status = 1
        traceback.print_exc(file=stderr)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    return Outcome(
        status=status,
        stdout=stdout.getvalue(),
        stderr=stderr.getvalue(),
        seconds=time.process_time() - started,
        peak=max(0, memory("VmHWM") - before),
        timed_out=timed_out,
        left=tuple(_children() - children),
    )


_import_jobs = cache(import_jobs)
"""Once, so that no command is charged for it."""


def _restart_peak() -> int:
    """Bytes of memory that this process has; from now on its peak is counted anew, where the system can do so.

    The package keeps what it frees (`vitreous.memory`); a command that takes no more than that would have no peak.
    """
    trim_memory()
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return memory("VmHWM")  # the earlier peak stays: only what goes beyond it counts
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
            found.update(map(int, task.read_text().split()))
    return found


class Processes:
    """Runs commands in children of a process that has everything imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._zygote = subprocess.Popen(
            [sys.executable, ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == {"ready": True}

    def __call__(
        self,
        *argv: object,
        code: str = "",
        limit: float = 120.0,
        grace: float = 60.0,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        stdin: Path | None = None,
        stdout: Path | None = None,
        stderr: Path | None = None,
    ) -> Outcome:
        """What `vitreous ARGV` does, or Python code in its place; after `limit` seconds it is killed.

        grace: seconds that processes which it started may outlive it.
        stdout, stderr: where they go, such as /dev/full.
        """
        out, err = stdout or self.folder / "stdout", stderr or self.folder / "stderr"
        request = {
            "argv": [str(arg) for arg in argv],
            "code": code,
            "limit": limit,
            "grace": grace,
            "cwd": str(cwd or self.folder),
            "env": env or {},
            "stdin": str(stdin or ""),
            "stdout": str(out),
            "stderr": str(err),
        }
        print(json.dumps(request), file=self._zygote.stdin, flush=True)
        answer = self._answer()
        texts = [path.read_text(errors="backslashreplace") if path.is_file() else "" for path in (out, err)]
        return Outcome(
            status=answer["status"],
            stdout=texts[0],
            stderr=texts[1],
            seconds=answer["seconds"],
            peak=answer["peak"],
            timed_out=answer["timed_out"],
            left=tuple(answer["left"]),
        )

    def _answer(self) -> dict:
        assert self._zygote.stdout is not None
        return json.loads(self._zygote.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._zygote.stdin is not None
        print("null", file=self._zygote.stdin, flush=True)
        self._zygote.stdin.close()
        self._zygote.wait(timeout=60)
        assert self._zygote.stdout is not None
        self._zygote.stdout.close()


def check_ended_well(outcome: Outcome, *, seconds: float, memory: int) -> None:
    """No traceback, in time, within memory, and no process left behind: whatever the answer is."""
    assert not outcome.timed_out, f"still running, after {outcome.seconds:.1f} s of processor time: {outcome.stderr}"
    assert "Traceback" not in outcome.stderr + outcome.stdout, outcome.stderr
    assert outcome.seconds < seconds, f"{outcome.seconds:.1f} s: {outcome.stderr}"
    assert outcome.peak < memory, f"{outcome.peak / MB:.0f} MB: {outcome.stderr}"
    assert not outcome.left, f"processes left behind: {outcome.left}"


def check_refused(outcome: Outcome, *names: str, seconds: float = SECONDS, memory: int = 200 * MB) -> None:
    """Status 2 and one sentence on stderr that names the file or field, within 3 processor seconds and 200 MB."""
    check_ended_well(outcome, seconds=seconds, memory=memory)
    assert outcome.status == 2, (outcome.status, outcome.stdout, outcome.stderr)
    lines = [line for line in outcome.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("vitreous: "), lines
    assert lines[0].endswith((".", "?")), lines
    for name in names:
        assert name in lines[0], (name, lines[0])
