from __future__ import annotations

from contextlib import closing

import pytest

from deploy.local.servers import Postgres
from tests.contract.postgres_reader import route_to, sink_to
from tests.contract.tls_contract import TlsContract


class TestPostgresBehindTls(TlsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def start(cls, installed):
        installed("postgresql")
        return lambda certificate: Postgres.start(certificate=certificate)

    @pytest.fixture
    def sink_to(self):
        def sink(url, trusted):
            if trusted is None:
                return closing(sink_to(f"{url}?sslmode=verify-full&sslrootcert=system"))
            return closing(sink_to(url, ca_certs=str(trusted)))

        return sink

    @pytest.fixture
    def route(self):
        return route_to()
