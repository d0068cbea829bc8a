"""A process with everything imported that runs each command in a child of its own, and says what it cost.

Starting Python and torch takes two seconds; forking takes milliseconds. So hundreds of commands can be tried, each in a
process that may hang, die or eat the machine. One JSON object per line in, one out.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path


def serve() -> None:
    import torch

    from vitreous.cli import VERBS, load_verb

    torch.set_num_threads(1)  # so that nothing but this thread is lost by a fork
    for verb in VERBS:
        load_verb(verb)
    import_jobs()
    replies = os.fdopen(os.dup(1), "w")
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=replies, flush=True)


def import_jobs() -> None:
    """What verbs import when they run."""
    import pkgutil
    from importlib import import_module

    import vitreous

    for module in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def run(request: dict) -> dict:
    """Run one command in a child; `limit` seconds later it is killed with all that it started."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, resident().to_bytes(8))
        os.close(reading)
        os.close(writing)
        command(request)
    os.close(writing)
    before = int.from_bytes(os.read(reading, 8))
    os.close(reading)
    status, usage, timed_out = wait(child, request["limit"])
    left = survivors(child)
    return {
        "status": status,
        "seconds": usage.ru_utime + usage.ru_stime,
        "peak": max(0, usage.ru_maxrss * 1024 - before),
        "timed_out": timed_out,
        "left": left,
    }


def command(request: dict) -> None:
    """In the child: become the command, or run Python code in its place, and never return."""
    os.setsid()
    os.dup2(os.open(request["stdin"] or os.devnull, os.O_RDONLY), 0)
    for stream, path in ((1, request["stdout"]), (2, request["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    status = 1
    try:
        if request["code"]:
            exec(request["code"], {})
        else:
            from vitreous.cli import main

            main(request["argv"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # a test may have closed it
                stream.flush()
        os._exit(status)


def wait(child: int, limit: float):
    end = time.monotonic() + limit
    pause = 0.001
    while time.monotonic() < end:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage, False
        time.sleep(pause)
        pause = min(0.02, 1.5 * pause)
    os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage, True


def survivors(group: int) -> list[int]:
    """Processes of a command's group that outlived it by a second; they are killed."""
    for _ in range(50):
        if not (alive := members(group)):
            return []
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    return alive


def members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def resident() -> int:
    """Bytes of memory that this process has."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    serve()
