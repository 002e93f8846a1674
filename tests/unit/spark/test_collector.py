"""A JVM refuses to start with two collectors, so ours is set only where none is named."""

import pytest

from cdf_replicator.spark.session import JVM_ENVIRON, default_collector

OURS = {"spark.driver.defaultJavaOptions": "-XX:+UseParallelGC -XX:GCTimeRatio=19"}


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch):
    for name in JVM_ENVIRON:
        monkeypatch.delenv(name, raising=False)


def test_default_collector_is_the_parallel_one():
    assert default_collector({"spark.driver.extraJavaOptions": "-Dgc=UseG1GC -XX:MaxGCPauseMillis=5"}) == OURS


@pytest.mark.parametrize("name", JVM_ENVIRON)
def test_collector_of_the_environment_is_kept(monkeypatch, name):
    monkeypatch.setenv(name, "-Xss2m -XX:+UseG1GC")
    assert default_collector({}) == {}


def test_configured_collector_is_kept():
    assert default_collector({"spark.driver.extraJavaOptions": "-XX:+UseZGC -Xss2m"}) == {}
