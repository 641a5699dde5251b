"""`python -m archfs ...`: replaces this process with the program archfs."""

import os
import sys

from . import Error, executable


def main() -> None:
    try:
        program = executable()
    except Error as error:
        sys.exit(f"archfs: error: {error}")
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:  # For example, it was built for another architecture.
        sys.exit(f"archfs: error: {program}: {error.strerror}")


if __name__ == "__main__":
    main()
