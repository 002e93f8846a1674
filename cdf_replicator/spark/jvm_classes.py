"""Keep the JVM's classes that PySpark names in every micro-batch, so that each name is resolved once.

PySpark names a class at each use, and py4j resolves the name again. A name without its package costs most: py4j searches
every jar for it, first alone and then in each package that PySpark imports. A method of a class is resolved at each use too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASSES: Final = (
    "io.delta.tables.DeltaTable",
    "java.lang.String",
    "org.apache.commons.io.IOUtils",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.api.python.PythonRDD",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.api.python.SerDeUtil",
    "org.apache.spark.api.python.SimplePythonFunction",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.delta.DeltaLog",
    "org.apache.spark.sql.functions",
    "py4j.reflection.TypeUtil",
    "scala.Option",
)
_IMPORTED: Final = ("PythonRDD", "PythonUtils", "SerDeUtil", "SimplePythonFunction", "PythonSQLUtils", "functions")
"""Classes that PySpark names without their packages."""


class _KeptClass(JavaClass):  # type: ignore[misc]
    """A class whose static methods are resolved once."""

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):  # a static field may change
            self.__dict__[name] = member
        return member


def keep(spark: SparkSession) -> None:
    """Keep the classes for every thread of the session, under each name by which PySpark, Delta and py4j get them.

    py4j's view of the JVM resolves only a name that is not among its attributes.
    """
    jvm: Any = spark._jvm
    client = jvm._gateway_client
    for full in _CLASSES:
        found = _KeptClass(full, client)
        *packages, name = full.split(".")
        parent = jvm
        for depth, package in enumerate(packages, start=1):
            path = ".".join(packages[:depth])
            parent = vars(parent).setdefault(package, JavaPackage(path, client, jvm_id=jvm._id))
        vars(parent)[name] = vars(jvm)[full] = found
        if name in _IMPORTED:
            vars(jvm)[name] = found
