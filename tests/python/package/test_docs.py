"""Every Python example in docs/PYTHON.md and docs/how-to runs unchanged, in a directory with its archives."""

import importlib.util
import os
import re
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import archfs
from stage import Stage

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "docs" / "PYTHON.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
# Except those below a marker for scripts/test-recipes.
BLOCK = re.compile(r"(?<! -->\n)(?:<!-- needs (\w+) -->\n)?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def picture():
    """A PNG of 8 x 8 red pixels."""

    def part(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">2I5B", 8, 8, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * 8) * 8)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", rows) + part(b"IEND", b"")


class DocsTest(Stage):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = tempfile.mkdtemp(prefix="archfs-package-docs-")
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        for name in ("cat", "dog"):
            os.makedirs(os.path.join(cls.directory, "train", name))
            for number in range(3):
                Path(cls.directory, "train", name, f"{number}.png").write_bytes(picture())
        archfs.pack(os.path.join(cls.directory, "train"), os.path.join(cls.directory, "train.sqfs"))
        shutil.copy(cls.tar, os.path.join(cls.directory, "extra.tar"))

    def example(self, module, code):
        if module and importlib.util.find_spec(module) is None:
            self.skipTest(f"{module} is not installed")
        program = os.path.join(self.directory, "example.py")
        Path(program).write_text(code, encoding="utf-8")
        # A mount point with the name of the job belongs to this test only.
        job = dict(os.environ, SLURM_JOB_ID=f"test-{os.getpid()}")
        process = self.start("-W", "error", program, directory=self.directory, env=job)
        output = self.finished(process)
        self.assertEqual(self.said, "")
        return output


def blocks():
    """Each example with its page and first line."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start(2)) + 1
            heading = re.findall(r"^#+ (.*)$", text[: found.start()], re.MULTILINE)[-1]
            where = f"{page.stem}_line_{line}_{heading}"
            yield re.sub(r"[^a-z0-9]+", "_", where.lower()), found.group(1), found.group(2)


for name, module, code in blocks():
    setattr(DocsTest, f"test_{name}", lambda self, module=module, code=code: self.example(module, code))
