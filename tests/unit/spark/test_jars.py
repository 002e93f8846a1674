"""Where the Delta jars come from, and whether executors on other machines are sent them."""

from __future__ import annotations

import shutil

import pytest

from cdf_replicator.settings.models import Spark
from cdf_replicator.spark import SparkStartError, jars
from deploy.local.jars import fetch

CLUSTER = "spark://master:7077"


@pytest.fixture
def folder(tmp_path):
    for name in ("delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def beside_pyspark(folder, monkeypatch):
    monkeypatch.setattr(jars, "JARS", folder)
    return folder


def test_jars_in_pyspark_folder_are_enough_for_local_mode(beside_pyspark):
    assert jars.for_delta(Spark(jars=str(beside_pyspark))) == {}


def test_executors_elsewhere_are_sent_those_of_the_folder_that_is_named(beside_pyspark):
    assert jars.for_delta(Spark(master=CLUSTER)) == {}
    sent = jars.for_delta(Spark(master=CLUSTER, jars=str(beside_pyspark)))["spark.jars"]
    assert sent.split(",") == sorted(map(str, beside_pyspark.glob("*.jar")))


def test_a_folder_without_them_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(jars, "JARS", tmp_path / "none")
    with pytest.raises(SparkStartError, match="no delta-spark_"):
        jars.for_delta(Spark(jars=str(tmp_path)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder as a first start leaves it: pyspark's folder has them too here."""
    folder = tmp_path / "cache" / "cdf-replicator" / "jars"
    folder.mkdir(parents=True)
    for jar in jars.listed():
        shutil.copy(jars.JARS / jar.file, folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "JARS", tmp_path / "none")
    return folder


def test_wheel_fetches_exactly_the_tested_jars_once(cache, monkeypatch):
    monkeypatch.setattr(jars, "_fetch", lambda *_: pytest.fail("they are there"))
    conf = jars.for_delta(Spark())
    assert conf.keys() == {"spark.jars"}, "no packages, whose dependencies Spark would fetch at each start"
    assert conf["spark.jars"].split(",") == [str(cache / jar.file) for jar in jars.listed()]


def test_a_jar_that_is_not_what_was_tested_is_fetched_again(cache, monkeypatch):
    (cache / jars.listed()[0].file).write_bytes(b"x")
    fetched = []
    monkeypatch.setattr(jars, "_fetch", lambda wanted, *_: fetched.append(len(wanted)))
    jars.cached()
    assert fetched == [7]


def test_the_list_in_the_package_is_the_list_of_the_set_up():
    ours = {(jar.file, jar.sha256) for jar in jars.listed()}
    sums = fetch._checksums()
    assert ours == {(artifact.file, sums[artifact.file]) for artifact in fetch.artifacts("delta")}
