"""`python -m transduce` and the `transduce` command: run the command line, and say what went wrong in plain words."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A user's error is printed without a traceback; the exit code is then 2."""
    from transduce.cli import app
    from transduce.errors import UserError

    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone, as with `| head`
        sys.exit(141)


if __name__ == "__main__":
    main()
