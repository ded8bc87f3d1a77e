"""What a JVM of Spark says by itself, where a command has its own way of telling things."""

import os
from typing import Final

from busnode.pipeline.java import cache_directory
from busnode.world.files import Files, read_whole, replace_whole
from busnode.world.real_files import RealFiles

SETTINGS: Final = """\
# Errors alone. Written by busnode, for the commands of its pipeline.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# Where Python starts it, Spark would set another level than that of the root, and say so.
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""

OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Where Spark looks for options of the JVM that it starts; a person may have some there."""


def quiet_jvm() -> None:
    """Let the JVM that a session will start write errors alone, from its first line on."""
    if "log4j2.configurationFile" not in os.environ.get(OPTIONS, ""):
        path = written(RealFiles(), cache_directory())
        mine = f"-Dlog4j2.configurationFile=file:{path}"
        os.environ[OPTIONS] = f"{os.environ.get(OPTIONS, '')} {mine}".strip()


def written(files: Files, directory: str) -> str:
    """The settings in a file, written once and the same for everybody."""
    path, text = f"{directory}/log4j2.properties", SETTINGS.encode()
    files.make_directory(directory)
    if not files.exists(path) or read_whole(files, path, 2 * len(text)) != text:
        replace_whole(files, path, text, durable=False)
    return path
