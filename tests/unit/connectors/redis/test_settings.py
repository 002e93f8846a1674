"""A Redis sink validates its settings, and never shows a secret."""

import pytest
from pydantic import ValidationError
from redis import Redis

from connectors import PermanentError, RouteSpec
from connectors.redis import RedisOptions, RedisSettings, RedisSink

URL = "redis://me:s3cr3t@cache:6379/0"


def test_secrets_are_hidden_in_every_text_of_the_settings():
    settings = RedisSettings(type="redis", url=URL, password="0ther")
    texts = f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()} {RedisSink(settings)!r}"
    assert "s3cr3t" not in texts
    assert "0ther" not in texts
    assert RedisSink(settings).endpoint == "cache:6379/0"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://cache", "cache:6379/0"),
        ("redis://", "localhost:6379/0"),
        ("rediss://u:p@cache:1/2", "cache:1/2"),
        ("redis://cache/2?db=3&socket_timeout=1", "cache:6379/3"),
        ("redis://[::1]:7/", "::1:7/0"),
        ("unix://u:p@/run/redis%201.sock?db=4", "/run/redis 1.sock/4"),
    ],
)
def test_address_of_a_url_equals_that_of_redis_py(url, place):
    options = Redis.from_url(url).connection_pool.connection_kwargs
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    assert f"{where}/{options.get('db', 0)}" == place
    assert RedisSink(RedisSettings(type="redis", url=url)).endpoint == place


@pytest.mark.parametrize(
    ("url", "endpoint", "servers"),
    [
        ("redis+cluster://me:s3cr3t@B:7000,a", "a:6379,b:7000", ["b:7000/0", "a:6379/0"]),
        ("rediss+cluster://a:7000/0", "a:7000", ["a:7000/0"]),
        ("redis+sentinel://me:s3cr3t@b,a:1/cache", "a:1,b:26379/cache/0", ["b:26379/cache/0", "a:1/cache/0"]),
        ("redis+sentinel://[::1]:7/cache/2", "::1:7/cache/2", ["localhost:7/cache/2"]),
    ],
)
def test_servers_of_a_cluster_or_sentinel_url_are_places_without_credentials(url, endpoint, servers):
    sink = RedisSink(RedisSettings(type="redis", url=url))
    route = RouteSpec(name="r", table="orders", keys=("id",), options=RedisOptions(), owner="us", epoch=1)
    assert sink.endpoint == endpoint
    assert sink.places(route) == {f"redis {server} orders:" for server in servers}
    assert sink.target(route) == f"redis {endpoint} orders:"


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://me:s3cr3t@a/1",
        "redis+cluster://me:s3cr3t@a,",
        "redis+cluster://me:x@a:s3cr3t,b",
        "redis+sentinel://me:s3cr3t@a:1",
        "redis+sentinel://me:s3cr3t@a:1/cache/s3cr3t",
        "rediss+sentinel://me:s3cr3t@a:1/cache",
        "http://me:s3cr3t@cache",
        "redis://me:s3c#r3t@cache:6379",
        "redis://me:x@cache:s3cr3t/0",
        "redis://h/s3cr3t",
        "unix://",
        "cache:6379",
    ],
)
def test_invalid_url_is_refused_without_quoting_it(url):
    with pytest.raises(ValidationError) as caught:
        RedisSettings(type="redis", url=url)
    assert "expected redis://" in str(caught.value)
    assert "s3c" not in str(caught.value)


def test_url_option_refused_by_the_client_stops_the_route():
    sink = RedisSink(RedisSettings(type="redis", url=f"{URL}?socket_timeout=s3cr3t"))
    with pytest.raises(PermanentError, match="socket_timeout") as caught:
        sink.check()
    assert "s3cr3t" not in str(caught.value)


def test_certificates_without_tls_are_an_error():
    with pytest.raises(ValidationError, match="rediss://"):
        RedisSettings(type="redis", url=URL, ca_certs="/etc/ca.pem")
    RedisSettings(type="redis", url="rediss://cache:6379/0", ca_certs="/etc/ca.pem")
    RedisSettings(type="redis", url="rediss+cluster://cache", ca_certs="/etc/ca.pem")


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e10", "86401", "0"])
def test_timeout_is_at_most_a_day(seconds):
    with pytest.raises(ValidationError, match="timeout_seconds"):
        RedisSettings(type="redis", url=URL, timeout_seconds=seconds)
    assert RedisSettings(type="redis", url=URL, timeout_seconds="86400").timeout_seconds == 86_400


@pytest.mark.parametrize(
    "template", ["orders:{id}", "orders:{region}:{id}", "a/{id}/b", "x:{a}-:-{b}", "x:{a.b}:{c:d!}:{e f}"]
)
def test_unambiguous_templates_are_accepted(template):
    assert RedisOptions(key_template=template).key_template == template


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{id}", "text before"),
        ("", "text before"),
        ("orders:{a}{b}", "colon"),
        ("orders:{a}-{b}", "colon"),
        ("orders:{a", "orders:{id}"),
        ("orders:{}", "column names"),
        ("{{orders}}:{id}", "braces are allowed around"),
    ],
)
def test_ambiguous_templates_are_refused(template, reason):
    with pytest.raises(ValidationError, match=reason):
        RedisOptions(key_template=template)
