"""The JVM ends without memory. The service selects its collector and archive of classes, unless the operator selects them."""

import pytest

from cdf_replicator.spark.class_archive import CLASS_PATH
from cdf_replicator.spark.session import JVM_ENVIRON, jvm_settings

DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
EXIT = "-XX:+ExitOnOutOfMemoryError"
PARALLEL = "-XX:+UseParallelGC -XX:GCTimeRatio=19 -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
COLLECTOR = {DEFAULT_OPTIONS: f"{EXIT} {PARALLEL}"}


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch):
    for name in JVM_ENVIRON:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def absent(tmp_path):
    return tmp_path / "absent.jsa"


@pytest.fixture
def archive(tmp_path):
    file = tmp_path / "with space" / "classes.jsa"
    file.parent.mkdir()
    file.touch()
    return file


def test_default_collector_is_the_parallel_one(absent):
    assert jvm_settings({"spark.driver.extraJavaOptions": "-Dgc=UseG1GC -XX:MaxGCPauseMillis=5"}, absent) == COLLECTOR


@pytest.mark.parametrize("name", JVM_ENVIRON)
def test_collector_of_the_environment_is_kept(monkeypatch, name, absent):
    monkeypatch.setenv(name, "-Xss2m -XX:+UseG1GC")
    assert jvm_settings({}, absent) == {DEFAULT_OPTIONS: EXIT}


def test_configured_collector_is_kept(absent):
    assert jvm_settings({"spark.driver.extraJavaOptions": "-XX:+UseZGC -Xss2m"}, absent) == {DEFAULT_OPTIONS: EXIT}


def test_archive_is_used_with_jars_in_order_of_names(archive):
    chosen = jvm_settings({}, archive)
    assert f'-XX:SharedArchiveFile="{archive}"' in chosen[DEFAULT_OPTIONS]
    assert COLLECTOR[DEFAULT_OPTIONS] in chosen[DEFAULT_OPTIONS]
    jars = chosen[CLASS_PATH].split(":")
    assert jars == sorted(jars)
    assert any("/spark-core_" in jar for jar in jars)


@pytest.mark.parametrize(
    "conf",
    [
        {CLASS_PATH: "/opt/own.jar"},
        {"spark.driver.extraJavaOptions": "-Xshare:off"},
        {"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/opt/own.jsa"},
    ],
)
def test_archive_gives_way_to_settings_of_the_operator(conf, archive):
    assert jvm_settings(conf, archive) == COLLECTOR


def test_archive_gives_way_to_options_of_the_environment(monkeypatch, archive):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:SharedArchiveFile=/opt/own.jsa")
    assert jvm_settings({}, archive) == COLLECTOR
