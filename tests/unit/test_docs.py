"""What the documentation says of the code is made from the code."""

import pytest
from tests.unit import phase_table


def test_the_architecture_page_shows_the_phase_table_as_it_is() -> None:
    if not phase_table.PAGE.exists():
        pytest.skip("the page is not written yet")
    page = phase_table.PAGE.read_text()
    assert phase_table.BEGIN in page, f"{phase_table.PAGE} has no {phase_table.BEGIN} … {phase_table.END} for the table"
    assert phase_table.written(page) == page, "run `python -m tests.unit.phase_table`, then look at what has changed"
