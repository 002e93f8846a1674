"""Two sinks as a third party would write them, with no server behind; ``conftest.example_sinks`` installs them."""

from __future__ import annotations

from pydantic import BaseModel, Field, SecretStr

from connectors import Capabilities, FrameResult, FrameSink, RouteOptions, SinkSettings

GOOD = {
    "CDF_STATE_PATH": "/state",
    "CDF_TABLES__ORDERS__PATH": "s3a://lake/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "log,store",
    "CDF_SINKS__LOG__TYPE": "example_log",
    "CDF_SINKS__LOG__PATH": "/log",
    "CDF_SINKS__STORE__TYPE": "example_store",
    "CDF_SINKS__STORE__HOSTS": "http://a:9200",
}
"""An environment that is enough, and uses them."""


class Limits(BaseModel, extra="forbid", frozen=True):
    rows: int = Field(100, ge=1)
    token: SecretStr | None = None


class LogSink(FrameSink):
    mode = "append"

    class Settings(SinkSettings):
        path: str = Field(description="Where it goes.")

    def target(self, route):
        return f"{self.settings.path}/{route.table}"

    def check(self):
        pass

    def read_claim(self, route):
        return None

    def prepare(self, schema, route):
        return ()

    def write(self, frame, batch):
        return FrameResult()


class StoreSink(LogSink):
    mode = "upsert"
    capabilities = Capabilities(prefix_targets=True)

    class Settings(SinkSettings):
        hosts: tuple[str, ...] = Field(min_length=1, description="Addresses.")
        password: SecretStr | None = None
        ca_file: str | None = None
        retries: int = Field(3, ge=0)
        limits: Limits = Limits()
        headers: dict[str, str] = Field({})

    class Options(RouteOptions):
        index: str | None = Field(None, description="Name of the index.")
        layout: str = "json"

    def target(self, route):
        if route.options.index == "bad*":
            raise ValueError("an index name without *")
        return f"index {route.options.index or route.table}"
