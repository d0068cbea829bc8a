"""How the hostile tests run a command, and what every refusal must look like."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ZYGOTE = Path(__file__).with_name("zygote.py")
SECONDS = 3.0
MB = 2**20


@dataclass(frozen=True)
class Outcome:
    """What became of one command."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    """Of processor time, its children included: tests run side by side, so the clock says little."""
    peak: int
    """Bytes of memory beyond what the imported package takes."""
    timed_out: bool
    left: tuple[int, ...]
    """Processes that outlived it."""


class Commands:
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
        limit: float = 30.0,
        grace: float = 10.0,
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
