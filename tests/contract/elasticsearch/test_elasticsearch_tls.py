from __future__ import annotations

from contextlib import closing

import pytest

from deploy.local.servers import Elasticsearch
from tests.contract.elasticsearch_reader import route_to, sink_to
from tests.contract.tls_contract import TlsContract

PASSWORD = "correct horse"


class TestElasticsearchBehindTls(TlsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def start(cls):
        return lambda certificate: Elasticsearch.start(password=PASSWORD, certificate=certificate)

    @pytest.fixture
    def sink_to(self):
        login = {"username": "elastic", "password": PASSWORD}
        return lambda url, trusted: closing(sink_to(url, ca_certs=trusted, request_timeout=20, **login))

    @pytest.fixture
    def route(self):
        return route_to()
