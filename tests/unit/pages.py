"""What stands in the boxes of a page."""

from __future__ import annotations

import re


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
