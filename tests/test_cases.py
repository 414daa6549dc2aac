"""The table of cases names tests that there are, and leaves no case without one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROWS = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", (ROOT / "docs/cases.md").read_text(), re.MULTILINE)
NUMBERS = {*range(1, 35)} - {3, 12, 18, 23, 24, 26, 28, 30}


def names_in(path):
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, functions)}


def test_every_case_is_shown_by_tests_that_there_are():
    shown = {int(number): re.findall(r"`(tests/\S+?\.py)::(\w+)`", tests) for number, tests in ROWS}

    missing = [
        (number, path, name)
        for number, tests in shown.items()
        for path, name in tests
        if not (ROOT / path).exists() or name not in names_in(ROOT / path)
    ]
    assert missing == []
    assert {number for number, tests in shown.items() if tests} == NUMBERS
