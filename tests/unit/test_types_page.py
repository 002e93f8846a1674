"""docs/types.md is generated from the data of its tests."""

from docs.generate.types_page import PAGE, page


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run: make docs"
