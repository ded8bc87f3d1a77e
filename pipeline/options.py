"""What a table may be asked for with: every option is checked, and an unknown one refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from busnode.client.directory import parse_url
from busnode.pipeline.logs import Cursors
from busnode.wire.errors import BadOption, BadPattern, BadTopic, Refused
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, LogId, Pattern, Topic
from busnode.wire.topics import check_pattern, check_topic
from busnode.world.real_process import absolute

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EVERYTHING: Final = "/*"

READING: Final = (
    "path", "paths", "url", "topics", "start", "end", "maxRowsPerTrigger", "failOnDataLoss",
    "copies",
)  # fmt: skip

WRITING: Final = ("url", "topic", "require")
SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""What Spark hands on to a sink and takes for itself."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Place = Literal["earliest", "latest"] | int | Cursors
"""Where to start or to end: at what there is, at a utc in µs, or at a cursor in each log."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Where messages are read from, and which."""

    paths: tuple[str, ...]
    url: str | None
    pattern: Pattern
    start: Place
    end: Place
    rows_max: int | None
    """For one trigger of a stream."""
    fail_on_data_loss: bool
    every_copy: bool


def source_options(given: Mapping[str, str], *, stream: bool) -> SourceOptions:
    """Raises BadOption, with the name of the option."""
    options = known(given, READING)
    paths, url = _paths(options), options.get("url")
    if bool(paths) == bool(url):
        both = "both are given" if url else "neither is given"
        raise BadOption(f"a table is read from option path or from option url: {both}")
    if url:
        check_url(url)
    try:
        pattern = check_pattern(options.get("topics", EVERYTHING))
    except BadPattern as error:
        raise BadOption(f"option topics: {error.text}") from error
    end = place("end", options.get("end", LATEST))
    if stream and end != LATEST:
        raise BadOption("option end: a stream has none; for all that is there now use the trigger")
    every_copy = choice("copies", options.get("copies", "best"), ("best", "all")) == "all"
    if every_copy and (stream or url):
        raise BadOption("option copies: all copies are read from path alone, and not as a stream")
    rows_max = whole("maxRowsPerTrigger", options.get("maxRowsPerTrigger"))
    fail = choice("failOnDataLoss", options.get("failOnDataLoss", "true"), ("true", "false"))
    start = place("start", options.get("start", EARLIEST))
    return SourceOptions(
        paths, url, pattern, start, end, rows_max, fail == "true", every_copy
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows are published."""

    url: str
    topic: Topic | None
    """For all rows, where they have no column that tells."""
    require: Literal["mirrored"] | None


def sink_options(given: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """Raises BadOption, with the name of the option."""
    own = {name.lower() for name in SPARKS_OWN}
    options = known({k: v for k, v in given.items() if k.lower() not in own}, WRITING)
    if overwrite:
        raise BadOption("mode overwrite, or output mode complete: what is on the bus stays there")
    if "url" not in options:
        raise BadOption("option url: it must name a node, such as bus://127.0.0.1:4250")
    check_url(options["url"])
    try:
        topic = check_topic(options["topic"]) if "topic" in options else None
    except BadTopic as error:
        raise BadOption(f"option topic: {error.text}") from error
    require: Literal["mirrored"] | None = None
    if "require" in options:
        choice("require", options["require"], ("mirrored",))
        require = "mirrored"
    return SinkOptions(options["url"], topic, require)


def known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their true names; Spark tells no capitals apart."""
    true = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in true:
            raise BadOption(f"option {name!r:.60} is unknown; there are {', '.join(names)}")
        found[true[name.lower()]] = value
    return found


def choice(name: str, value: str, values: tuple[str, ...]) -> str:
    if value.lower() not in values:
        raise BadOption(f"option {name}: {value!r:.60}; expected {' or '.join(values)}")
    return value.lower()


def whole(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or not int(value):
        raise BadOption(f"option {name}: {value!r:.60}; expected a whole number from 1 on")
    return int(value)


def check_url(url: str) -> None:
    try:
        parse_url(url)
    except Refused as error:
        raise BadOption(f"option url: {error.text}") from error


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Those of `option("path", "a,b")`, and those of `load(["a", "b"])`, which Spark packs so."""
    listed = options.get("paths")
    several = cast("list[str]", json.loads(listed)) if listed else []
    one = [part.strip() for part in options.get("path", "").split(",")]
    paths = tuple(path for path in (*one, *several) if path)
    for path in paths:
        if "://" in path and not path.startswith("file://"):
            raise BadOption(f"option path: {path!r:.100}; expected a folder of this machine's")
    return tuple(absolute(path.removeprefix("file://")) for path in paths)


def place(name: str, text: str) -> Place:
    """`earliest`, `latest`, a time (ISO 8601, or µs since 1970), or a position as JSON."""
    text = text.strip()
    if text == EARLIEST:
        return "earliest"
    if text == LATEST:
        return "latest"
    if text.isdecimal():
        return int(text)
    if text.startswith("{"):
        return _cursors(name, text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"option {name}: {text!r:.60}; expected earliest, latest, a time such as "
            "2026-01-31T12:00:00Z, or a position"
        ) from None
    if moment.tzinfo is None:
        raise BadOption(f"option {name}: {text!r:.60} has no time zone: end it with Z for UTC")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _cursors(name: str, text: str) -> Cursors:
    """What `Position.encode` writes, or its inner part alone: {brokerId: {topic: msgNo}}."""
    try:
        whole_text: dict[str, Any] = json.loads(text)
        return decode_cursors(whole_text.get("position", whole_text))
    except (ValueError, TypeError, AttributeError) as error:
        raise BadOption(f"option {name}: text that is no position: {error}") from error


def encode_cursors(cursors: Cursors) -> dict[str, dict[str, int]]:
    """As JSON carries them; the same cursors are always the same text."""
    nested: dict[str, dict[str, int]] = {}
    for log_id, msg_no in sorted(cursors.items()):
        nested.setdefault(log_id.broker_id.hex(), {})[log_id.topic] = msg_no
    return nested


def decode_cursors(nested: Mapping[str, Mapping[str, int]]) -> Cursors:
    """ValueError for what is none."""
    cursors: Cursors = {}
    for broker, topics in nested.items():
        broker_id = bytes.fromhex(broker)
        if len(broker_id) != BROKER_ID_BYTES:
            raise ValueError(f"brokerId {broker!r:.60}")
        for topic, msg_no in topics.items():
            if type(msg_no) is not int or msg_no < 0:
                raise ValueError(f"msgNo {msg_no!r:.40} of {topic!r:.60}")
            cursors[LogId(BrokerId(broker_id), Topic(topic))] = msg_no
    return cursors
