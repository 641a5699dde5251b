"""Prints the version (or WORDS) of modules, and whether they are in the environment of the running python.

Usage: where.py MODULE...
"""

import importlib
import os
import sys


def main():
    print("environment:", sys.prefix != sys.base_prefix, sys.executable.startswith(sys.prefix))
    for name in sys.argv[1:]:
        module = importlib.import_module(name)
        inside = os.path.realpath(module.__file__).startswith(os.path.realpath(sys.prefix) + os.sep)
        print(name, inside, getattr(module, "__version__", getattr(module, "WORDS", "")))


if __name__ == "__main__":
    main()
