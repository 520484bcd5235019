"""The process that warm.py's programs are forked from: `warm_server.py ADDRESS PROGRAM`.

Each caller gets a keeper, which tells it the number of the process that works for it, waits for that one's end, and
tells how it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from typing import NoReturn

LOADED = """torch._dynamo sacrebleu matplotlib.figure transduce.cli transduce.training.loop transduce.training.parallel
    transduce.workflows.compare.run transduce.workflows.distill transduce.engines.torch.engine""".split()


def serve(address: str) -> None:
    """Fork for everyone who calls; only the forks return, when they are set up as their caller is."""
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or every fork's collector touches, and so copies, all that is loaded
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"\0{address}")
        door.listen()
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([door, sys.stdin], [], [])[0]:
                os._exit(0)
            caller = door.accept()[0]
            if os.fork() == 0:
                break
            caller.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # keepers that have done
                    pass
    with caller:
        size, streams, _, _ = socket.recv_fds(caller, 8, 3)
        with caller.makefile("rb") as file:
            said = file.read(int.from_bytes(size, "big"))
        if not said or len(said) < int.from_bytes(size, "big"):
            os._exit(0)  # the caller was killed before it had said all
        words, folder, environment = json.loads(said)
        worker = os.fork()
        if worker != 0:
            with contextlib.suppress(BrokenPipeError):  # a caller that was killed meanwhile, which is seen below
                caller.sendall(worker.to_bytes(8, "big"))
            ended = os.pidfd_open(worker)
            if ended not in select.select([caller, ended], [], [])[0]:
                os.kill(worker, signal.SIGKILL)  # as its caller was
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
            caller.sendall(code.to_bytes(8, "big", signed=True))
            os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words


def run(program: str) -> None:
    """What `python` does with its words."""
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, "r" if number == 0 else "w") for number in range(3))
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    sys.executable = program
    sys.path[:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()
    warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)
    if sys.argv[0] == "-u":
        del sys.argv[0]
        sys.stdout.reconfigure(write_through=True)
    if sys.argv[0] == "-P":
        del sys.argv[0], sys.path[0]
    match sys.argv:
        case ["-m", module, *_]:
            del sys.argv[0]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", text, *_]:
            del sys.argv[1]
            exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
        case [path, *_]:
            sys.path[0] = os.path.dirname(path)
            runpy.run_path(path, run_name="__main__")


def end_process(code: int) -> NoReturn:
    """As Python ends, but that it frees no memory: all of torch's was copied when it was touched."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    own = sys.argv[2]
    serve(sys.argv[1])
    try:
        run(own)
        code: object = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    end_process(code if isinstance(code, int) else int(code is not None))
