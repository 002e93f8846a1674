"""Tests of the classes that are resolved once: PySpark gets them without a search, and they exist in the JVM."""

from __future__ import annotations

import pytest
from py4j.clientserver import JavaClient
from py4j.java_gateway import JavaClass
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.spark import jvm_classes


@pytest.mark.parametrize("name", jvm_classes._CLASSES)
def test_kept_class_exists_in_the_jvm(spark, name):
    view = spark.sparkContext._gateway.new_jvm_view()
    found = getattr(view, name)
    assert isinstance(found, JavaClass)
    assert getattr(spark._jvm, name)._fqn == found._fqn


def test_column_costs_one_request(spark, monkeypatch):
    sent, send = [], JavaClient.send_command

    def recorded(client, command, *arguments, **options):
        sent.append(command.split("\n"))
        return send(client, command, *arguments, **options)

    F.col("id") + F.lit(1)
    monkeypatch.setattr(JavaClient, "send_command", recorded)
    F.col("id") + F.lit(1)
    assert [parts[2] for parts in sent if parts[0] == "c"] == ["col", "lit", "plus"]
    assert {parts[0] for parts in sent} <= {"c", "m"}  # calls, and objects that Python released


def test_other_classes_of_a_kept_package_are_found(spark):
    assert spark._jvm.io.delta.tables.DeltaColumnBuilder._fqn == "io.delta.tables.DeltaColumnBuilder"
