"""Which URLs are understood, which places two routes share, and which names a table may have."""

import pytest
from pydantic import ValidationError

from connectors import PermanentError, RouteSpec
from connectors.postgres import PostgresOptions, PostgresSettings, PostgresSink
from connectors.settings import parse_vectors


def sink_to(url, **more):
    return PostgresSink(PostgresSettings(type="postgres", url=url, **more))


def route_to(table=None, slug="orders"):
    return RouteSpec("orders_db", slug, ("id",), PostgresOptions(target_table=table), "us", 1)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("postgresql://cdf:s3cret@db:6432/shop?sslmode=require", "db:6432/shop"),
        ("postgres://db/shop", "db:5432/shop"),
        ("postgresql://cdf@a,b:6432/shop", "a:5432,b:6432/shop"),
        ("postgresql://[::1]:6432/shop", "::1:6432/shop"),
        ("postgresql://[::1]/shop", "::1:5432/shop"),
        ("postgresql:///shop?host=/run/postgresql", "/run/postgresql:5432/shop"),
        ("postgresql:///my%20shop", "localhost:5432/my shop"),
        ("postgresql://cdf:p%40s3cret@db/shop", "db:5432/shop"),
    ],
)
def test_endpoint_names_servers_and_database_without_credentials(url, endpoint):
    assert sink_to(url).endpoint == endpoint


@pytest.mark.parametrize(
    "url",
    [
        "db:5432/shop",
        "mysql://db/shop",
        "postgresql://db",
        "postgresql://s3cret@db:x/shop",
        "postgresql://cdf:p@s3cret@db/shop",
    ],
)
def test_wrong_url_is_refused_and_not_repeated(url):
    with pytest.raises(ValidationError, match="expected postgresql://host:5432/database") as caught:
        sink_to(url)
    assert "s3cret" not in str(caught.value)


def test_spellings_of_one_target_have_the_same_places():
    same = (
        sink_to("postgresql://cdf@localhost/shop"),
        sink_to("postgres://other:s3cret@127.0.0.1:5432/shop?sslmode=require", timeout_seconds=5),
    )
    assert len({sink.places(route_to()) for sink in same}) == 1
    assert same[0].places(route_to("orders")) == same[0].places(route_to())
    others = (sink_to("postgresql://localhost/other"), sink_to("postgresql://localhost/shop", schema_name="other"))
    assert all(not sink.places(route_to()) & same[0].places(route_to()) for sink in others)
    assert sink_to("postgresql://a,b/shop").places(route_to()) & sink_to("postgresql://b/shop").places(route_to())


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e10", "86401", "0.5"])
def test_timeout_is_at_most_a_day(seconds):
    with pytest.raises(ValidationError, match="timeout_seconds"):
        sink_to("postgresql://db/shop", timeout_seconds=seconds)
    assert sink_to("postgresql://db/shop", timeout_seconds="86400").settings.timeout_seconds == 86_400


@pytest.mark.parametrize("name", ["", "x" * 51, "a\0b"])
def test_wrong_name_of_a_table_is_refused(name):
    with pytest.raises(ValidationError, match="expected a name of 1 to 50 bytes"):
        PostgresOptions(target_table=name)


def test_slug_that_is_too_long_for_a_table_names_the_option():
    with pytest.raises(PermanentError, match="TARGET_TABLE"):
        sink_to("postgresql://db/shop").target(route_to(slug="x" * 51))


def test_vectors_are_parsed_with_and_without_a_metric():
    assert parse_vectors("embedding:256:cosine, title:64", 256) == {"embedding": (256, "cosine"), "title": (64, None)}
    assert parse_vectors("", 256) == {}


def test_vector_that_no_index_takes_is_refused_with_a_metric():
    with pytest.raises(ValidationError, match="at most 2000 numbers; declare embedding:2001 without a metric"):
        PostgresOptions(vectors="embedding:2001:cosine")
    assert PostgresOptions(vectors="a:2000:l2,b:16000").parsed_vectors == {"a": (2000, "l2"), "b": (16_000, None)}
