from __future__ import annotations

import ssl
from contextlib import closing

import pytest

from deploy.local.servers import Elasticsearch
from tests.contract.elasticsearch_reader import route_to, sink_to
from tests.contract.tls_contract import TlsContract
from tests.support.waiting import until

PASSWORD = "correct horse"


class TestElasticsearchBehindTls(TlsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def start(cls):
        settings = {"resource.reload.interval.high": "1s"}
        return lambda certificate: Elasticsearch.start(password=PASSWORD, certificate=certificate, settings=settings)

    def replace(self, server, certificate):
        """Write the files, which the server reads while it runs: a start takes 9 s of processor time."""
        server.certificate = certificate
        server.write_certificate()
        (leaf, *_) = certificate[1].decode().split("\n-----BEGIN", 1)
        until(lambda: ssl.get_server_certificate(("127.0.0.1", server.port)).strip() == leaf.strip())

    @pytest.fixture
    def sink_to(self):
        login = {"username": "elastic", "password": PASSWORD}
        return lambda url, trusted: closing(sink_to(url, ca_certs=trusted, request_timeout=20, **login))

    @pytest.fixture
    def route(self):
        return route_to()
