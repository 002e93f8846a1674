"""What a Redis sink accepts as settings, and that it never shows a secret."""

import pytest
from pydantic import ValidationError

from connectors.redis import RedisOptions, RedisSettings, RedisSink

URL = "redis://me:s3cr3t@cache:6379/0"


def test_secrets_are_hidden_in_every_text_of_the_settings():
    settings = RedisSettings(type="redis", url=URL, password="0ther")
    texts = f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()} {RedisSink(settings)!r}"
    assert "s3cr3t" not in texts
    assert "0ther" not in texts
    assert RedisSink(settings).server == "cache:6379/0"


@pytest.mark.parametrize(
    "url", ["http://me:s3cr3t@cache", "redis://me:s3c#r3t@cache:6379", "redis://me:x@cache:s3cr3t/0", "cache:6379"]
)
def test_a_url_that_is_not_understood_is_refused_without_being_quoted(url):
    with pytest.raises(ValidationError) as caught:
        RedisSettings(type="redis", url=url)
    assert "expected redis://" in str(caught.value)
    assert "s3c" not in str(caught.value)


def test_certificates_without_tls_are_an_error():
    with pytest.raises(ValidationError, match="rediss://"):
        RedisSettings(type="redis", url=URL, ca_certs="/etc/ca.pem")
    RedisSettings(type="redis", url="rediss://cache:6379/0", ca_certs="/etc/ca.pem")


@pytest.mark.parametrize("template", ["orders:{id}", "orders:{region}:{id}", "a/{id}/b", "x:{a}-:-{b}"])
def test_templates_that_keep_rows_apart_are_taken(template):
    assert RedisOptions(key_template=template).key_template == template


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{id}", "text before"),
        ("", "text before"),
        ("orders:{a}{b}", "colon"),
        ("orders:{a}-{b}", "colon"),
        ("orders:{a", "orders:{id}"),
        ("orders:{}", "plain column names"),
        ("orders:{a!r}", "plain column names"),
        ("orders:{a:>5}", "plain column names"),
        ("{{orders}}:{id}", "braces"),
    ],
)
def test_templates_by_which_rows_could_meet_are_refused(template, reason):
    with pytest.raises(ValidationError, match=reason):
        RedisOptions(key_template=template)
