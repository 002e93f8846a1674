from __future__ import annotations

from contextlib import closing

import pytest

from connectors import RouteSpec
from connectors.redis import RedisOptions, RedisSettings, RedisSink
from deploy.local.servers import Redis
from tests.contract.tls_contract import TlsContract


class TestRedisBehindTls(TlsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def start(cls, installed):
        installed("redis-server")
        return lambda certificate: Redis.start(certificate=certificate)

    @pytest.fixture
    def sink_to(self):
        def sink(url, trusted):
            return closing(RedisSink(RedisSettings(type="redis", url=url, ca_certs=trusted and str(trusted))))

        return sink

    @pytest.fixture
    def route(self):
        return RouteSpec(name="orders_cache", table="orders", keys=("id",), options=RedisOptions(), owner="us", epoch=1)
