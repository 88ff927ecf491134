"""What the checkout itself must be."""

from __future__ import annotations

import operator
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_operator_is_still_the_module_of_the_standard_library() -> None:
    """`operator/` is a folder of sources. An __init__.py in it would hide the module that half of Python imports."""
    assert not (ROOT / "operator/__init__.py").exists()
    assert ROOT not in Path(operator.__file__).parents


def test_what_two_tests_need_has_a_room_of_its_own() -> None:
    taken = re.compile(r"^from tests[.\w]*(\.test_\w+ import| import test_)", re.MULTILINE)
    files = (ROOT / "tests").rglob("*.py")
    assert [file.name for file in files if taken.search(file.read_text(encoding="utf-8"))] == []
