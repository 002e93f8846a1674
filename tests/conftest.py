"""Real servers and a real Spark: the first test that needs one starts it, and it ends with the last test."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import hypothesis
import pytest

from tests.support import service
from tests.support.session import SMALL_PLANS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from deploy.local.servers import Elasticsearch, OpenSearch, Postgres, Redis
    from tests.support.service import Ended

LONGEST = (
    "test_every_operation.py",
    "test_chaos.py",
    "test_lost_writes.py",
    "test_demo.py",
    "test_live.py",
    "test_operator.py",
    "test_standby.py",
    "test_whole_job.py",
    "test_isolation.py",
    "test_delta_replica.py",
    "test_schema_changes.py",
    "test_conditions.py",
    "test_start.py",
    "test_route.py",
    "test_audit.py",
    "test_redrive.py",
    "test_repair.py",
    "test_resync.py",
    "test_verify_history.py",
    "test_verify.py",
    "test_planted_faults.py",
    "test_replay.py",
    "test_copied_targets.py",
    "test_elasticsearch_faults.py",
    "test_redis.py",
    "test_answers.py",
    "test_duplicate_keys.py",
    "test_dead_letters.py",
    "test_damaged_checkpoint.py",
    "test_idle.py",
    "test_postgres.py",
    "test_enrichment.py",
    "test_reload.py",
    "test_types.py",
    "test_verify_background.py",
    "test_halts.py",
    "test_delta_features.py",
    "test_image.py",
    "test_object_store.py",
    "test_cluster.py",
    "test_manifests.py",
    "test_page.py",
    "test_state_path.py",
    "test_image_storage.py",  # waits for the image that test_image builds
    "test_catalog.py",
)
"""Files of the tiers that begin first, so that the processes of a tier end together."""

# HYPOTHESIS_PROFILE=ci draws the same examples in each run, nightly draws others. A deadline would measure the machine's load.
hypothesis.settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plans",
        choices=("small", "shipped"),
        default="small",
        help="Spark plans for tables of some rows, or those that production has",
    )
    parser.addoption("--nightly", action="store_true", help="run the tests that CI leaves out too")
    parser.addoption(
        "--every-step", action="store_true", help="lose writes at every step, not at a sample (test_lost_writes)"
    )
    parser.addoption("--restarts", type=int, default=6, help="restarts of a route whose sink is away (test_isolation)")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move the longest files to the front; all others stay in the order that pytest-randomly drew.

    Without ``--nightly``, deselect what only the nightly run needs: further targets and parameters of a tested path.
    """
    if not config.getoption("nightly"):
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def plans_of(config: pytest.Config) -> dict[str, str]:
    return SMALL_PLANS if config.getoption("plans") == "small" else {}


@pytest.fixture(scope="session", autouse=True)
def _short_lived(pytestconfig: pytest.Config) -> None:
    service.SPARK_CONF.update(service.SHORT_LIVED | plans_of(pytestconfig))


@pytest.fixture(scope="session", autouse=True)
def _no_authorities() -> Iterator[None]:
    """Give requests a context without certificate authorities, unless a test names some.

    The tests' servers speak HTTP, and reading the authorities takes ``httpx.get`` 18 ms of processor time, each time.
    """
    from httpx._transports import default

    create = default.create_ssl_context

    def created(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        named = trust_env and {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys()
        return (
            service.NO_AUTHORITIES if verify is True and cert is None and not named else create(verify, cert, trust_env)
        )

    with patch.object(default, "create_ssl_context", created):
        yield


@pytest.fixture(scope="session")
def elasticsearch_process() -> Iterator[Elasticsearch]:
    from deploy.local.servers import Elasticsearch
    from tests.chaos.world import NO_DISK_CHECKS

    with Elasticsearch.start(settings=NO_DISK_CHECKS) as server:
        yield server


@pytest.fixture(scope="module")
def elasticsearch(elasticsearch_process: Elasticsearch) -> Elasticsearch:
    """The one server of the session, without what an earlier module left in it."""
    _delete_indices(elasticsearch_process.url)
    return elasticsearch_process


@pytest.fixture(scope="session")
def opensearch_process() -> Iterator[OpenSearch]:
    from deploy.local.servers import OpenSearch

    with OpenSearch.start(settings={"http.max_content_length": "4mb"}) as server:
        yield server


@pytest.fixture(scope="module")
def opensearch(opensearch_process: OpenSearch) -> OpenSearch:
    """The one server of the session, without what an earlier module left in it."""
    _delete_indices(opensearch_process.url)
    return opensearch_process


def _delete_indices(url: str) -> None:
    import httpx

    for index in httpx.get(f"{url}/_alias", timeout=60).raise_for_status().json():
        httpx.delete(f"{url}/{index}", timeout=60).raise_for_status()


@pytest.fixture(scope="session")
def redis_process() -> Iterator[Redis]:
    from deploy.local.servers import Redis

    with Redis.start() as server:
        yield server


@pytest.fixture(scope="module")
def redis_server(redis_process: Redis) -> Redis:
    """The one server of the session, without what an earlier module left in it."""
    import redis

    with redis.Redis.from_url(redis_process.url) as client:
        client.flushall()
    return redis_process


@pytest.fixture(scope="session")
def postgres_process() -> Iterator[Postgres]:
    from deploy.local.servers import Postgres

    with Postgres.start() as server:
        yield server


@pytest.fixture(scope="module")
def postgres_server(postgres_process: Postgres) -> Postgres:
    """The one server of the session, without what an earlier module left in it."""
    from tests.support.postgres import emptied

    emptied(postgres_process)
    return postgres_process


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    from tests.support.session import started

    with started(tmp_path_factory.mktemp("spark"), plans_of(pytestconfig)) as session:
        yield session


@pytest.fixture
def here(spark: SparkSession) -> Callable[..., Ended]:
    """Run the command in this process, on the session's Spark: ``here(given, "run", "--once")``."""
    from tests.support import in_process

    return partial(in_process.run, spark)
