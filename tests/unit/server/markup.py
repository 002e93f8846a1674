"""Read the text of a page."""

from __future__ import annotations

import re
from html import unescape


def text(markup: str) -> str:
    """Return the visible text in one line."""
    words = re.sub(r"<style.*?</style>|<script.*?</script>|<title>.*?</title>|<[^>]*>", " ", markup, flags=re.DOTALL)
    return " ".join(unescape(words).split())


def rows(markup: str, table: str = "routes") -> list[str]:
    """Return the text of each row of a table."""
    found = re.search(rf'<table class="{table}">(.*?)</table>', markup, re.DOTALL)
    body = found[1][found[1].index("<tbody") :] if found else ""
    return [text(row) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)]
