"""`python -m archfs ...`: the program itself, in place of this process."""

import os
import sys

from . import Error, executable


def main() -> None:
    try:
        program = executable()
    except Error as error:
        sys.exit(f"archfs: {error}")
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:  # It is for another machine, say.
        sys.exit(f"archfs: {program}: {error.strerror}")


if __name__ == "__main__":
    main()
