"""What Delta or Spark would accept and we refuse, each with the reason (design rules 3, 5, 10)."""

from __future__ import annotations

import re
from typing import Final

_TABLE_OPTIONS: Final = {
    "excluderegex": "it hides changes, so that sinks would silently differ from the table",
    "failondataloss": "when change files are gone the route has to halt; going on would silently lose changes",
    "ignoredeletes": "a change feed carries deletes as changes; ignoring them leaves deleted rows in the sinks",
    "ignorechanges": "a change feed carries updates as changes; the option is for streams without a feed",
    "skipchangecommits": "it leaves out updates and deletes, so that sinks would silently differ from the table",
    "witheventtimeorder": "order is by commit version; bootstrap reads a pinned snapshot instead",
}

_SPARK_CONF: Final = {
    "spark.sql.files.ignoremissingfiles": "a missing change file has to halt the route, or its changes are lost",
    "spark.sql.files.ignorecorruptfiles": "a corrupt change file has to halt the route, or its changes are lost",
    "spark.speculation": "a second copy of a task writes to the sinks at the same time",
}

_TIMELY: Final = re.compile(
    r"\b(current_date|current_timestamp|current_time|localtimestamp)\b"
    r"|\b(now|curdate|unix_timestamp(?=\s*\(\s*\))|rand|random|randn|uuid|shuffle|monotonically_increasing_id)\s*\(",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`", re.DOTALL)


def table_option(name: str) -> str | None:
    """Why an option of a table is refused, whatever its spelling; None if it is none of those."""
    return _TABLE_OPTIONS.get(name.replace("_", "").lower())


def spark_conf(key: str, value: str) -> str | None:
    """Why a Spark setting is refused; None if it may be set."""
    name, text = key.lower(), value.strip().lower()
    if name in _SPARK_CONF and text == "true":
        return f"not true: {_SPARK_CONF[name]}"
    if name == "spark.remote":
        return "nothing: Spark Connect has no foreachBatch in this process; set CDF_SPARK__MASTER"
    if name == "spark.master":
        return "CDF_SPARK__MASTER instead"
    if name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog"):
        return "nothing: the service sets Delta's own"
    if name == "spark.sql.session.timezone" and text not in {"utc", "etc/utc"}:
        return "UTC, since timestamps reach the sinks as UTC"
    return None


def row_filter(text: str) -> str | None:
    """Why a filter is refused at sight: it gives another answer later, and nothing would remove what ages out."""
    found = _TIMELY.search(_QUOTED.sub("''", text))
    if found is None:
        return None
    name = (found[1] or found[2]).lower()
    return (
        f"a condition on the row alone; {name} gives another answer each time, and no change would ever remove a row "
        "that has stopped matching"
    )
