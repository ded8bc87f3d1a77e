"""What Spark tells the Pythons of our format in their environment, complete before a stream begins.

The function of a format, which all queries of a JVM share, has a map of variables, and each stream
that starts puts four into it, in a thread of its own. Two that start at the same moment may both
add the same one: then Scala's map counts more than it has, and from then on no task of the format
can be serialized ("Illegal size 5 of collection, expected 6"), until the JVM ends. A variable that
is there already is only replaced, which hurts nobody.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLES: Final = {
    "SPARK_LOCAL_DIRS": "/tmp",
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Those that streams put, with Spark's defaults. Before a Python is started, what holds is put over
them, so that only the names matter."""


def complete_environment(spark: "SparkSession", name: str) -> None:
    """Put what streams of a format would add. Nothing for a format that Spark does not find, or in
    a session of Spark Connect, whose JVM is elsewhere."""
    java: Any = import_module("py4j.protocol")  # it has no types of its own
    inner: Any = getattr(spark, "_jsparkSession", None)
    if inner is None:
        return
    try:
        formats = inner.sessionState().dataSourceManager()
        if formats.dataSourceExists(name):
            variables = formats.lookupDataSource(name).dataSourceCls().envVars()
            for variable, value in VARIABLES.items():
                variables.putIfAbsent(variable, value)
    except java.Py4JError:
        return  # a Spark with other insides: not a reason to have no session
