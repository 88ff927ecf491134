"""What the checkout itself must be."""

from __future__ import annotations

import operator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_operator_is_still_the_module_of_the_standard_library() -> None:
    """`operator/` is a folder of sources. An __init__.py in it would hide the module that half of Python imports."""
    assert not (ROOT / "operator/__init__.py").exists()
    assert ROOT not in Path(operator.__file__).parents
