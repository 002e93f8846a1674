"""Plain English: the files below CLEAN hold none of the words in BANNED.

`python -m tests.unit.test_language PATH...` prints every hit in the given files and folders, then the number per file.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
CLEAN = ("README.md", "CHANGELOG.md", "docs", "deploy", "cdf_replicator", "connectors", "tests")
"""Files and folders without a hit."""
SUFFIXES = (".py", ".md", ".html", ".yml", ".yaml", ".tpl", ".txt", ".sh", ".env")

EXAMPLES = json.loads(Path(__file__).with_name("banned_words.json").read_text())
"""The words and the examples. They are data, so that this file holds no word of the list."""
BANNED: dict[str, str] = EXAMPLES["words"]
"""Expression for each word. "the rest", "at rest", REST, "stands for", "look up", "one row" and "the first one" pass."""
BANNED_NAMES = frozenset(EXAMPLES["names"])
WORD = re.compile(
    rf"(?<![\w-])(?:{'|'.join(f'(?P<w{n}>{word})' for n, word in enumerate(BANNED.values()))})\b", re.IGNORECASE
)
NAMES = tuple(BANNED)
FRAGMENT = re.compile(r"(?:#+ )?(?:What|Whether|Who|Whose|Whom|Of)\b(?!.*\?$)")
"""The first word of a docstring or of a heading that is a clause and no sentence. A question is allowed."""

GENERATED = re.compile(r"<!-- generated: [a-z-]+ -->.*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"```.*?```|``[^`]+``|`[^`\n]+`|\]\([^)\s]*\)|https?://\S+", re.DOTALL)
INDENTED = re.compile(r"^(?: {4}|\t)(?!\s*[-*] ).*$", re.MULTILINE)
MARKUP = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>|\{[{%].*?[}%]\}", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """A piece of prose: a docstring, a comment, a text in the code, the name of a test, or a page."""

    line: int
    text: str
    opens: bool = False
    """True for the first line of a docstring, which must not open with a clause."""


@dataclass(frozen=True)
class Hit:
    line: int
    word: str
    text: str


def passages(path: Path) -> Iterator[Passage]:
    """Yield the prose of a file: docstrings, comments, texts and test names of Python, the words between the code of other files."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from python_passages(text)
    elif path.suffix == ".md":
        yield from markdown_passages(text)
    elif path.suffix == ".html":
        yield from lines_of(MARKUP.sub(blank, text))
    else:
        yield from lines_of(text)


def python_passages(source: str) -> Iterator[Passage]:
    nodes = list(ast.walk(ast.parse(source)))
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield Passage(node.lineno, node.value.lstrip(), opens=id(node) in statements)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Passage(node.lineno, node.name.replace("_", " "))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(token.start[0], token.string)


def markdown_passages(text: str) -> Iterator[Passage]:
    """Yield the lines of a page; of code in it only the comments after `#`. Generated parts belong to their sources."""
    text = GENERATED.sub(blank, text)
    text = INDENTED.sub(lambda line: blank(line) if "# " not in line[0] else line[0][line[0].index("# ") + 1 :], text)
    for passage in lines_of(CODE.sub(blank, text)):
        yield Passage(passage.line, passage.text, opens=passage.text.startswith("#"))


def lines_of(text: str) -> Iterator[Passage]:
    return (Passage(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def blank(found: re.Match[str]) -> str:
    """Return a placeholder with the same number of lines."""
    return "_" + "\n" * found[0].count("\n")


def hits(passage: Passage) -> Iterator[Hit]:
    text = re.sub(r"``[^`]+``|`[^`\n]+`", "_", passage.text)
    if passage.opens and FRAGMENT.match(text.partition("\n")[0]):
        yield Hit(passage.line, "fragment", text.partition("\n")[0])
    for found in WORD.finditer(text):
        word = next(name for n, name in enumerate(NAMES) if found[f"w{n}"])
        line = text.count("\n", 0, found.start())
        yield Hit(passage.line + line, word, text.splitlines()[line].strip())


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.suffix in SUFFIXES and file.is_file())


def hits_of(path: Path) -> list[Hit]:
    return sorted((hit for passage in passages(path) for hit in hits(passage)), key=lambda hit: hit.line)


def names_of_tests(file: Path) -> list[str]:
    return re.findall(r"^ *def (test_\w+)", file.read_text(), re.MULTILINE) if file.suffix == ".py" else []


def defined_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the names of functions, parameters, variables and attributes that a module defines, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


CHECKED = [str(file.relative_to(ROOT)) for file in files_of(ROOT / path for path in CLEAN)]


@pytest.mark.parametrize("name", CHECKED)
def test_prose_is_plain(name):
    assert [f"{name}:{hit.line}: {hit.word}: {hit.text}" for hit in hits_of(ROOT / name)] == []


@pytest.mark.parametrize("name", [name for name in CHECKED if name.endswith(".py")])
def test_code_defines_no_banned_name(name):
    found = defined_names((ROOT / name).read_text())
    assert [f"{name}:{line}: {word}" for line, word in found if word.lstrip("_") in BANNED_NAMES] == []


@pytest.mark.parametrize("line", EXAMPLES["definitions"])
def test_a_banned_name_is_found_where_it_is_defined(line):
    assert [word.lstrip("_") in BANNED_NAMES for _, word in defined_names(line)].count(True) == 1


def test_names_of_tests_have_at_most_12_words():
    names = [name for file in files_of([ROOT / "tests", ROOT / "connectors"]) for name in names_of_tests(file)]
    assert [name for name in names if len(name.split("_")) > 1 + 12] == []


@pytest.mark.parametrize("text", EXAMPLES["plain"])
def test_a_plain_sentence_has_no_hit(text):
    assert list(hits(Passage(1, text))) == []


@pytest.mark.parametrize(("text", "word"), EXAMPLES["banned"].items())
def test_a_banned_word_is_a_hit(text, word):
    assert [hit.word for hit in hits(Passage(1, text))] == [word]


@pytest.mark.parametrize(("kind", "read"), [("module", python_passages), ("page", markdown_passages)])
def test_prose_is_read_with_its_lines_and_code_is_not(kind, read):
    found = sorted(
        [hit.line, hit.word] for passage in read("\n".join(EXAMPLES[kind]["lines"]) + "\n") for hit in hits(passage)
    )
    assert found == EXAMPLES[kind]["hits"]


def main(paths: list[str]) -> int:
    """Print the hits of each file, then the number per file and in all; return 1 if there is a hit."""
    counts: Counter[str] = Counter()
    for path in files_of(map(Path, paths)):
        for hit in hits_of(path):
            counts[str(path)] += 1
            print(f"{path}:{hit.line}: {hit.word}: {hit.text}")  # noqa: T201
    for name, count in counts.most_common():
        print(f"{count:5} {name}")  # noqa: T201
    print(f"{counts.total():5} in all")  # noqa: T201
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
