"""docs/types.md says what the tests prove."""

from deploy.types_page import PAGE, page


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run: make docs"
