"""How much code differs between the loader of a directory and the others, counted from the source files.

Only code lines count, not blank lines, comments or docstrings. A line of a loader is changed if diff does not
find it in the loader of a directory; removed lines do not count.
"""

import ast
import difflib
import io
import pathlib
import tokenize

HERE = pathlib.Path(__file__).parent


def changed(reader):
    """Lines of `read_*` that are new or different."""
    before, after = (code(HERE / f"read_{name}.py") for name in ["directory", reader])
    return sum(line.startswith("+ ") for line in difflib.ndiff(before, after))


def converter(function):
    """Lines of a function of convert.py, including the two helpers that all of them call."""
    path = HERE / "convert.py"
    found = [node for node in ast.parse(path.read_text()).body
             if isinstance(node, ast.FunctionDef) and node.name in (function, "members", "class_of")]
    return sum(len(code(path, range(node.lineno, node.end_lineno + 1))) for node in found)


def code(path, among=None):
    source = path.read_text()
    texts = [node.body[0] for node in ast.walk(ast.parse(source))
             if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node)]
    without = {number for text in texts for number in range(text.lineno, text.end_lineno + 1)}
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
              tokenize.ENDMARKER}
    numbers = {number for token in tokenize.generate_tokens(io.StringIO(source).readline)
               if token.type not in silent for number in range(token.start[0], token.end[0] + 1)}
    lines = source.splitlines()
    return [lines[number - 1] for number in sorted(numbers - without) if not among or number in among]
