"""A digest of settings is equal exactly if the answer of a query may not differ."""

from __future__ import annotations

import pytest

from cdf_replicator.queries.configuration import digest
from cdf_replicator.settings import load

GIVEN = {
    "CDF_STATE_PATH": "/state",
    "CDF_TABLES__ORDERS__PATH": "/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "audit,search",
    "CDF_SINKS__AUDIT__TYPE": "delta_audit",
    "CDF_SINKS__AUDIT__PATH": "/audit",
    "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
    "CDF_SINKS__SEARCH__HOSTS": "http://es:9200",
    "CDF_SINKS__SEARCH__USERNAME": "writer",
    "CDF_SINKS__SEARCH__PASSWORD": "one",
    "CDF_ROUTES__ORDERS_SEARCH__COMPUTED": '{"a": "1", "b": "2"}',
}
SEARCH, AUDIT = ["orders_search"], ["orders_audit"]


def digests(**variables):
    settings = load(GIVEN | {f"CDF_{name}": value for name, value in variables.items()})
    return digest(settings, SEARCH), digest(settings, AUDIT), digest(settings, None), digest(settings, [])


def changed(**variables):
    """Return which digests differ: of the route to search, of the route to audit, of all settings, of no route."""
    return [one != other for one, other in zip(digests(), digests(**variables), strict=True)]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SINKS__SEARCH__PASSWORD": "two"}, [True, False, True, False]),
        ({"ROUTES__ORDERS_SEARCH__FILTER": "id > 1"}, [True, False, True, False]),
        ({"SINKS__AUDIT__PATH": "/other"}, [False, True, True, False]),
        ({"TABLES__ORDERS__PATH": "/other"}, [True, True, True, False]),
        ({"SPARK__CONF": '{"spark.hadoop.fs.s3a.secret.key": "x"}'}, [False, False, True, False]),
        ({"STATE_PATH": "s3a://lake/state"}, [True, True, True, True]),
        ({"STATE_PATH": "/link/to/state"}, [False] * 4),
        ({"HTTP__BIND_PORT": "9200", "LOG__LEVEL": "debug", "SHUTDOWN_SECONDS": "5"}, [False] * 4),
        ({"ROUTES__ORDERS_SEARCH__COMPUTED": '{"b": "2", "a": "1"}'}, [False] * 4),
    ],
    ids=str,
)
def test_digest_differs_with_the_settings_concerned(variables, expected):
    assert changed(**variables) == expected


def test_digest_shows_no_secret():
    assert all(len(each) == 64 and "one" not in each for each in digests())
