"""The fenced blocks of a Markdown file, and what the mark above each says about running it.

    <!-- recipe: NAME -->        it is run as it stands
    <!-- not run: REASON -->     it is not, and why

A block without a mark is a fault, so that none can rot unseen.
"""

import re

MARK = re.compile(r"<!-- (recipe|not run): (.+) -->$")


class Block:
    """A fenced block: the line its fence is on, and its text."""

    def __init__(self, line, mark, text):
        self.line, self.text = line, text
        self.kind, self.said = mark.groups() if mark else (None, None)

    def is_job(self):
        return "\n#SBATCH " in self.text


def blocks(path):
    found, inside, mark = [], None, None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if inside is None:
                inside = (number, mark, [])
            else:
                first, mark, lines = inside
                found.append(Block(first, mark, "".join(each + "\n" for each in lines)))
                inside, mark = None, None
        elif inside is not None:
            inside[2].append(line)
        elif line.strip():
            # Only a mark directly above a fence counts.
            mark = MARK.match(line)
    if inside is not None:
        raise SystemExit(f"test-recipes: {path}:{inside[0]}: a block that does not end")
    return found
