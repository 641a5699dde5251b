"""A case: one archive, what is broken in it, and what archfs must report."""

import zlib

CASES = []


class Case:
    """The manifest entry of one archive."""

    def __init__(self, name, breaks):
        self.name = name
        self.breaks = breaks
        self.files = {}
        self.options = []
        self.faults = []
        self.healthy = {}
        self.lists = None
        self.modified = None
        self.sound_for_others = False
        self.memory = 384

    def opens_not(self, *says):
        """The archive is rejected, with a message that contains all of these words."""
        self.faults.append({"do": "open", "says": list(says)})
        self.healthy = {}

    def fails(self, operation, path, *says):
        """The operation (read, list, stat, readlink, xattr:NAME) on `path` fails."""
        self.faults.append({"do": operation, "path": path, "says": list(says)})

    def notes(self, *says):
        """Opening it succeeds, and the log contains a line with these words."""
        self.faults.append({"do": "note", "says": list(says)})

    def keeps(self, path, contents):
        """The file `path` is still readable."""
        self.healthy[path] = {"length": len(contents), "crc32": zlib.crc32(contents)}

    def entry(self):
        """The case as an entry of the manifest."""
        entry = {"file": self.name, "breaks": self.breaks, "memory": self.memory}
        # Empty values are left out.
        others = [("options", self.options), ("modified", self.modified)]
        others += [("sound", self.sound_for_others), ("faults", self.faults)]
        others += [("lists", self.lists), ("healthy", self.healthy)]
        entry.update((key, value) for key, value in others if value)
        return entry


def case(name):
    """Registers a function that takes a `Case` and returns the bytes of the archive `name`."""

    def register(function):
        CASES.append((name, function))
        return function

    return register


def made():
    """All cases, with their bytes."""
    for name, function in CASES:
        found = Case(name, " ".join(function.__doc__.split()))
        found.files[name] = function(found)
        yield found
