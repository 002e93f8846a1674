"""The page shows the definition of a route."""

import pytest

from cdf_replicator.monitoring.definitions import definition, effective_settings
from cdf_replicator.monitoring.status import Definition
from cdf_replicator.settings import load
from tests.unit.example_sinks import GOOD

pytestmark = pytest.mark.usefixtures("example_sinks")


def test_configured_settings_come_first_and_secrets_are_hidden():
    shown = effective_settings(load(GOOD | {"CDF_SINKS__STORE__PASSWORD": "secret"}))
    origins = [setting.origin for setting in shown]
    assert origins == sorted(origins, key=lambda origin: origin == "default")
    assert {setting.variable for setting in shown if setting.origin == "environment"} >= set(GOOD)
    assert "secret" not in repr(shown)


def test_credentials_in_a_location_are_hidden():
    settings = load(GOOD | {"CDF_TABLES__ORDERS__PATH": "s3a://AKIA:hunter2@lake/orders"})
    assert definition(settings, settings.routes["orders_store"]).source == "s3a://AKIA:********@lake/orders"


def test_route_is_shown_as_configured():
    settings = load(
        GOOD | {"CDF_ROUTES__ORDERS_STORE__FILTER": "a <> 1", "CDF_ROUTES__ORDERS_STORE__COLUMNS": "id,name"}
    )
    assert definition(settings, settings.routes["orders_store"]) == Definition(
        "s3a://lake/orders", "index orders", "upsert", ("id",), "a <> 1", ("id", "name")
    )
    assert definition(settings, settings.routes["orders_log"]) == Definition(
        "s3a://lake/orders", "/log/orders", "append", ("id",), None, None
    )
