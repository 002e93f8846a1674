"""Tests of a server behind TLS with a private authority: which certificates a sink trusts, and its error for others."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import trustme

from connectors import PermanentError, RetryableError
from connectors.testing import SCHEMA, render_chunk, upsert


def pair(certificate):
    """Private key and chain, as the servers take them."""
    return certificate.private_key_pem.bytes(), b"".join(blob.bytes() for blob in certificate.cert_chain_pems)


class TlsContract:
    """Subclasses give the fixtures ``start`` (of a certificate, a server in a ``with``), ``sink_to`` (of a URL and a file of
    authorities or None, a sink in a ``with``) and ``route``.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def authority(cls):
        return trustme.CA()

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, authority, start):
        with start(pair(authority.issue_cert("127.0.0.1"))) as started:
            yield started

    @pytest.fixture
    def sink_of(self, server, authority, sink_to, tmp_path):
        def sink(url=server.url, trusted=authority):
            trusted.cert_pem.write_to_path(tmp_path / "authority.pem")
            return sink_to(url, tmp_path / "authority.pem")

        return sink

    def test_configured_private_authority_is_trusted(self, sink_of, spark, route):
        with sink_of() as sink:
            sink.check()
            sink.prepare(SCHEMA, route)
            sink.open(route)
            result = sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("a", 1)]))
            assert not [*result.rejected, *result.retry]

    def test_a_certificate_of_another_authority_is_refused(self, sink_of):
        with sink_of(trusted=trustme.CA()) as sink, pytest.raises(PermanentError, match="not trusted") as caught:
            sink.check()
        assert "CA_CERTS" in caught.value.hint

    def test_private_authority_is_unknown_without_configuration(self, server, sink_to):
        with sink_to(server.url, None) as sink, pytest.raises(PermanentError, match="not trusted"):
            sink.check()

    def test_a_certificate_for_another_name_is_refused(self, sink_of, server):
        url = server.url.replace("127.0.0.1", "localhost")
        with sink_of(url=url) as sink, pytest.raises(PermanentError, match="another name"):
            sink.check()

    def test_expired_certificate_is_retried_until_it_is_renewed(self, sink_of, server, authority):
        yesterday = datetime.now(timezone.utc) - timedelta(days=1)
        expired = authority.issue_cert("127.0.0.1", not_after=yesterday)
        self.assert_retried_until_renewed(sink_of, server, authority, expired, "expired; renew it")

    def test_certificate_that_is_not_yet_valid_is_retried(self, sink_of, server, authority):
        soon = datetime.now(timezone.utc) + timedelta(hours=1)
        early = authority.issue_cert("127.0.0.1", not_before=soon)
        self.assert_retried_until_renewed(sink_of, server, authority, early, "not yet valid")

    def assert_retried_until_renewed(self, sink_of, server, authority, certificate, said):
        self.replace(server, pair(certificate))
        with sink_of() as sink:
            with pytest.raises(RetryableError, match=said):
                sink.check()
            self.replace(server, pair(authority.issue_cert("127.0.0.1")))
            sink.check()

    def replace(self, server, certificate):
        """Give the server another certificate."""
        server.certificate = certificate
        server.restart()
