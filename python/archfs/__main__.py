"""`python -m archfs ...`: the program itself, in place of this process."""

import os
import sys

from . import Error, executable


def main() -> None:
    try:
        program = executable()
    except Error as error:
        sys.exit(f"archfs: {error}")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
