"""The pages with recipes, their fenced blocks, and the mark above each block.

    <!-- recipe: NAME -->        run unchanged
    <!-- not run: REASON -->     not run, for this reason

A block without a mark is an error, because an unmarked block could become wrong unnoticed. The exception is
Python: tests/python/package/test_docs.py runs every Python block that has no mark.
"""

import re

MARK = re.compile(r"<!-- (recipe|not run): (.+) -->$")


class Block:
    """A fenced block: its page, the line of its fence, and its text."""

    def __init__(self, page, line, mark, text, language):
        self.page, self.line, self.text = page, line, text
        self.kind, self.said = mark.groups() if mark else (None, None)
        if mark is None and language == "python":
            self.kind, self.said = "not run", "run by scripts/test-package"

    def is_job(self):
        return "\n#SBATCH " in self.text


def pages(top):
    """In the order in which recipes run: later pages read archives that the README creates."""
    docs = top / "docs"
    return [top / "README.md", docs / "getting-started.md", *sorted((docs / "how-to").glob("*.md"))]


def blocks(path):
    found, inside, mark = [], None, None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if inside is None:
                inside = (number, mark, line[3:].strip(), [])
            else:
                first, mark, language, lines = inside
                text = "".join(each + "\n" for each in lines)
                found.append(Block(path.name, first, mark, text, language))
                inside, mark = None, None
        elif inside is not None:
            inside[3].append(line)
        elif line.strip():
            # Only a mark directly above a fence counts.
            mark = MARK.match(line)
    if inside is not None:
        raise SystemExit(f"test-recipes: {path}:{inside[0]}: a block that does not end")
    return found
