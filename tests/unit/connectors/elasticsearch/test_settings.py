import pickle

import pytest
from pydantic import ValidationError

from connectors.elasticsearch import ElasticsearchSink
from connectors.errors import PermanentError

URL = "http://es:9200"


def settings(**given):
    return ElasticsearchSink.Settings(**{"type": "elasticsearch", "hosts": URL, **given})


def test_hosts_are_comma_separated_or_a_list():
    both = ("http://a:9200", "https://b:443/es")
    assert settings(hosts="http://a:9200, https://b:443/es").hosts == both
    assert settings(hosts=list(both)).hosts == both


@pytest.mark.parametrize(
    "hosts", ["", "es:9200", "http://es", "ftp://es:21", "http://es:port", "http://[es:1", "http://es:1?x=y"]
)
def test_a_host_that_is_no_url_is_refused(hosts):
    with pytest.raises(ValidationError, match="expected"):
        settings(hosts=hosts)


def test_credentials_in_a_url_are_refused_and_not_shown():
    with pytest.raises(ValidationError, match="USERNAME and PASSWORD") as caught:
        settings(hosts="http://ann:s3cret@es:9200")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "given", [{"username": "u"}, {"password": "p"}, {"api_key": "k", "username": "u", "password": "p"}]
)
def test_incomplete_or_double_credentials_are_refused(given):
    with pytest.raises(ValidationError):
        settings(**given)


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e10", "86401", "0"])
def test_timeout_is_at_most_a_day(seconds):
    with pytest.raises(ValidationError, match="request_timeout"):
        settings(request_timeout=seconds)
    assert settings(request_timeout="86400").request_timeout == 86_400


def test_secrets_are_not_shown():
    assert "s3cret" not in repr(settings(username="u", password="s3cret")) + repr(settings(api_key="s3cret"))


@pytest.mark.parametrize("index", ["Orders", "a,b", "a*", "_all", "-x", ".hidden", "a b", "", "x" * 245])
def test_invalid_index_name_is_refused(index):
    with pytest.raises(ValidationError, match="expected the name"):
        ElasticsearchSink.Options(index=index)


@pytest.mark.parametrize("index", ["orders", "orders-v2", "bestellungen_ä.2024", "x" * 233])
def test_valid_index_names_are_accepted(index):
    assert ElasticsearchSink.Options(index=index).index == index


@pytest.mark.parametrize("hosts", ["http://es:9200", "https://a:9200,http://b:9200"])
def test_authorities_without_tls_are_refused(hosts):
    with pytest.raises(ValidationError, match="CA_CERTS needs https:// in each URL of HOSTS"):
        settings(hosts=hosts, ca_certs="/etc/ssl/ca.pem")
    assert settings(hosts="HTTPS://es:9200", ca_certs="/etc/ssl/ca.pem").ca_certs


def test_missing_authority_files_are_named(tmp_path):
    sink = ElasticsearchSink(settings(hosts="https://es:9200", ca_certs=tmp_path / "ca.pem"))
    with pytest.raises(PermanentError, match="CA_CERTS"):
        sink.check()


def test_settings_pickle_with_their_secrets():
    copy = pickle.loads(pickle.dumps(ElasticsearchSink(settings(api_key="s3cret"))))
    assert copy.settings.api_key.get_secret_value() == "s3cret"
