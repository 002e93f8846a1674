"""Options of Delta and Spark that the service refuses, each with the reason (see ``docs/design.md``)."""

from __future__ import annotations

from typing import Final

_NEVER_LATE: Final = (
    "a change is never late: order is by commit version, and a watermark would drop changes, so that sinks would "
    "silently differ from the table"
)
_NO_DUPLICATES: Final = (
    "a change feed has each change once, and sinks recognize a redelivery by its guard; of two equal changes the "
    "second may revert a third, and dropping it would leave the sinks wrong"
)
_NO_WINDOWS: Final = (
    "a corrected or deleted row has to leave its window again, which an aggregate over a stream of changes can't do; "
    "aggregate the table, or use a sink that recomputes changed groups"
)

_OPTIONS: Final = {
    "excluderegex": "it hides changes, so that sinks would silently differ from the table",
    "failondataloss": "when change files are gone the route has to halt; continuing would silently lose changes",
    "ignoredeletes": "a change feed carries deletes as changes; ignoring them leaves deleted rows in the sinks",
    "ignorechanges": "a change feed carries updates as changes; the option is for streams without a feed",
    "skipchangecommits": "it leaves out updates and deletes, so that sinks would silently differ from the table",
    "witheventtimeorder": "order is by commit version; bootstrap reads a pinned snapshot instead",
    "eventtime": "order is by commit version; the time in a row is the time of an event and does not say which row is newer",
    "outputmode": "a sink's mode follows from its type: every change, or the last change per key",
    **dict.fromkeys(("watermark", "withwatermark", "lateness", "allowedlateness", "latedata"), _NEVER_LATE),
    **dict.fromkeys(("dropduplicates", "dedup"), _NO_DUPLICATES),
    **dict.fromkeys(("window", "sessionwindow", "groupby", "aggregate"), _NO_WINDOWS),
}
"""Reasons by the beginning of the option's name."""

_SPARK_CONF: Final = {
    "spark.sql.files.ignoremissingfiles": "a missing change file has to halt the route, or its changes are lost",
    "spark.sql.files.ignorecorruptfiles": "a corrupt change file has to halt the route, or its changes are lost",
    "spark.speculation": "a second copy of a task writes to the sinks at the same time",
}
"""Reasons why a setting may not be true."""

_VALUES: Final = {
    "spark.sql.ansi.enabled": (("true",), "true, since the text of a decimal in a key depends on it"),
    "spark.sql.legacy.charvarcharasstring": (("false",), "false, since a key of type char has its blanks"),
    "spark.sql.legacy.parquet.returnnullstructifallfieldsmissing": (
        ("false",),
        "false, since a struct of added fields alone is not null",
    ),
    "spark.sql.legacy.timeparserpolicy": (("corrected",), "CORRECTED, since others lose microseconds of keys and rows"),
    "spark.sql.parquet.outputtimestamptype": (
        ("int96", "timestamp_micros"),
        "INT96 or TIMESTAMP_MICROS, since Delta sinks keep microseconds",
    ),
    "spark.sql.readsidecharpadding": (("true",), "true, since a key of type char has its blanks"),
    "spark.sql.session.timezone": (("utc", "etc/utc"), "UTC, since timestamps reach the sinks as UTC"),
}
"""The values that a setting may have, and the text for the operator."""


def unsupported_option(name: str) -> str | None:
    """Return the reason why an option of a table or route is refused, in any spelling; None if it is not refused."""
    plain = name.replace("_", "").lower()
    return next((reason for start, reason in _OPTIONS.items() if plain.startswith(start)), None)


def spark_conf(key: str, value: str) -> str | None:
    """Return the expected value if a Spark setting is refused; None if it may be set."""
    name, text = key.lower(), value.strip().lower()
    if name in _SPARK_CONF and text == "true":
        return f"not true: {_SPARK_CONF[name]}"
    if name == "spark.remote":
        return "nothing: Spark Connect has no foreachBatch in this process; set CDF_SPARK__MASTER"
    if name == "spark.master":
        return "CDF_SPARK__MASTER instead"
    if name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog"):
        return "nothing: the service sets Delta's own"
    accepted, expected = _VALUES.get(name, ((text,), None))
    return None if text in accepted else expected
