"""A process with everything imported that runs each command in a child of its own, and says what it cost.

Starting Python and torch takes two seconds; forking takes milliseconds. So hundreds of commands can be tried, each in a
process that may hang, die or eat the machine. One JSON object per line in, one out.
"""

import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path


def serve() -> None:
    import torch

    from vitreous.cli import load_verb, verb_table

    torch.set_num_threads(1)  # so that nothing but this thread is lost by a fork
    for verb in verb_table():
        load_verb(verb)
    import_jobs()
    import_parser()
    gc.freeze()  # else every child walks through all that, and the system copies it
    replies = os.fdopen(os.dup(1), "w")
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        if (request := json.loads(line)) is None:  # a forked process may hold the pipe open, so its end says little
            break
        print(json.dumps(run(request)), file=replies, flush=True)


def import_jobs() -> None:
    """What verbs import when they run."""
    import pkgutil
    from importlib import import_module

    import vitreous

    for module in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def import_parser() -> None:
    """What is imported when a command line is read, and when it is refused: two commands that do nothing.

    The package of the hub must not be imported here: it reads its settings from the environment as it is imported.
    """
    from vitreous.cli import main

    streams = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        for argv in (["models"], ["predict", "no model", "no image"]):
            with suppress(SystemExit):
                main(argv)
    sys.stdout, sys.stderr = streams
    assert "huggingface_hub" not in sys.modules


def run(request: dict) -> dict:
    """Run one command in a child; `limit` seconds later it is killed with all that it started."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, memory("VmRSS").to_bytes(8))
        os.close(reading)
        os.close(writing)
        command(request)
    os.close(writing)
    before = int.from_bytes(os.read(reading, 8))
    os.close(reading)
    status, usage, timed_out = wait(child, request["limit"])
    left = survivors(child, request["grace"])
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
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    timed_out = not poll.poll(1000 * limit)
    os.close(handle)
    if timed_out:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage, timed_out


def survivors(group: int, grace: float) -> list[int]:
    """Processes of a command's group that outlived it by `grace` seconds; they are killed."""
    end = time.monotonic() + grace
    while alive := members(group):
        if time.monotonic() >= end:
            os.killpg(group, signal.SIGKILL)
            return alive
        time.sleep(0.02)
    return []


def members(group: int) -> list[int]:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:  # the usual case, and reading all of /proc is slow
        return []
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


def memory(name: str) -> int:
    """Bytes of memory that this process has ("VmRSS") or had at most ("VmHWM"); 0 where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


if __name__ == "__main__":
    serve()
