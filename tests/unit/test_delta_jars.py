"""Where the Delta jars come from, and whether executors on other machines are sent them."""

from __future__ import annotations

import pytest

from cdf_replicator import spark
from cdf_replicator.settings import Spark

CLUSTER = "spark://master:7077"


@pytest.fixture
def folder(tmp_path):
    for name in ("delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def beside_pyspark(folder, monkeypatch):
    monkeypatch.setattr(spark, "_JARS", folder)
    return folder


def test_those_beside_pyspark_are_enough_for_one_machine(beside_pyspark):
    assert spark.delta_jars(Spark(jars=str(beside_pyspark))) == {}


def test_executors_elsewhere_are_sent_those_of_the_folder_that_is_named(beside_pyspark):
    assert spark.delta_jars(Spark(master=CLUSTER)) == {}
    sent = spark.delta_jars(Spark(master=CLUSTER, jars=str(beside_pyspark)))["spark.jars"]
    assert sent.split(",") == sorted(map(str, beside_pyspark.glob("*.jar")))


def test_a_folder_without_them_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(spark, "_JARS", tmp_path / "none")
    with pytest.raises(spark.SparkStartError, match="no delta-spark_"):
        spark.delta_jars(Spark(jars=str(tmp_path)))
    assert spark.delta_jars(Spark()) == {"spark.jars.packages": spark.DELTA_PACKAGE}
