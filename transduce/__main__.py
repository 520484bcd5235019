"""`python -m transduce` and the `transduce` command: run the command line, and report errors in plain words."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and end."""
    from transduce.core.processes import leave, open_closed_streams

    open_closed_streams()
    try:
        _run()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 0)
        raise


def _run() -> None:
    """Run the command line; print user errors without a traceback and exit with code 2."""
    from transduce.cli import program
    from transduce.core.durable import reason_of
    from transduce.core.errors import UserError, needed_by
    from transduce.core.processes import first_to_tell
    from transduce.core.progress import say

    try:
        try:
            with needed_by(" ".join(["transduce", *sys.argv[1:2]])):
                program(sys.argv[1:])()
        finally:
            sys.stdout.flush()  # here, where an error can still be reported in words
    except UserError as error:
        if first_to_tell():
            say(f"error: {error}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        _discard_output()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        if first_to_tell():
            say(f"error: {error.filename or 'writing the output'}: {reason_of(error)}")
        _discard_output()
        sys.exit(2)
    except Exception:
        if not first_to_tell():
            sys.exit(1)
        raise


def _discard_output() -> None:
    """Discard the remaining output: Python writes it at exit, and would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


if __name__ == "__main__":
    main()
