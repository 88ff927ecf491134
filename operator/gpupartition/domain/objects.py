"""Objects of the API as the domain has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]
"""As it was read: nobody writes into it."""
