"""What a task's headers say: the queue's own begin with $."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.wire.carried_task import (
    CARRIED_BYTES_MAX,
    ERROR_BYTES_MAX,
    HISTORY_MAX,
    Attempt,
    Carried,
    cut,
    decode_carried,
    encode_carried,
)
from busnode.wire.errors import BadTask
from busnode.wire.ids import BrokerId
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import (
    DELAY_MS_MAX,
    WINDOW_MS_MAX,
    TaskOptions,
    check_queue,
    read_batch,
    read_options,
    write_options,
)

CARRIED = Carried("abc-1", 1000, 2, (Attempt(1, 5, "w", "no"), Attempt(2, 9, "w", "no")), 50)

all_options = st.builds(
    TaskOptions,
    delay_ms=st.integers(0, DELAY_MS_MAX),
    due_us=st.none() | st.integers(0, 2**62),
    priority=st.integers(-9, 9),
    key=st.none() | st.text("abc", min_size=1, max_size=9),
    retry=st.sampled_from([None, Schedule.parse("none"), Schedule.parse("0,1")]),
    carried=st.sampled_from([None, CARRIED]),
)


@given(all_options)
def test_what_is_written_is_read_again(options: TaskOptions) -> None:
    headers = write_options(options)
    assert read_options({**headers, "mine": "x"}, by_node=True) == (options if headers else None)


def test_a_window_is_written_with_its_key() -> None:
    headers = write_options(TaskOptions(key="k", window_ms=1000))
    assert headers == {"$key": "k", "$window_ms": "1000"}


def test_headers_without_dollar_are_the_users() -> None:
    assert read_options({"delay_ms": "x", "trace": "1"}) is None
    assert read_options({}) is None
    assert read_options(None) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"$delay_ms": "-1"},
        {"$delay_ms": str(DELAY_MS_MAX + 1)},
        {"$delay_ms": "soon"},
        {"$delay_ms": ""},
        {"$delay_ms": "1.5"},
        {"$delay_ms": "--1"},
        {"$delay_ms": "9" * 5000},
        {"$due_us": "-1"},
        {"$priority": "10"},
        {"$priority": "-10"},
        {"$key": ""},
        {"$key": "k" * 129},
        {"$window_ms": "0"},
        {"$window_ms": str(WINDOW_MS_MAX + 1)},
        {"$retry": "often"},
        {"$unknown": "1"},
        {"$task": encode_carried(CARRIED)},
    ],
)
def test_what_cannot_be_is_refused_with_a_code(headers: dict[str, str]) -> None:
    with pytest.raises(BadTask) as caught:
        read_options(headers)
    assert caught.value.code == "BAD_TASK"
    assert len(caught.value.text) < 300


@pytest.mark.parametrize("options", [TaskOptions(delay_ms=-1), TaskOptions(priority=11)])
def test_what_cannot_be_is_not_written(options: TaskOptions) -> None:
    with pytest.raises(BadTask):
        write_options(options)


def test_a_batch_has_options_for_each_and_a_fault_for_what_cannot_be_read() -> None:
    options = read_batch([None, {"$delay_ms": "5"}, {"a": "b"}, {"$delay_ms": "never"}])
    assert options is not None
    assert options[:3] == [None, TaskOptions(delay_ms=5), None]
    assert options[3] is not None
    assert options[3].fault is not None
    assert "never" in options[3].fault


def test_a_batch_in_which_nobody_asks_for_anything_has_none() -> None:
    assert read_batch(None) is None
    assert read_batch([None, {"a": "b"}]) is None


def test_a_client_cannot_carry() -> None:
    header = {"$task": encode_carried(CARRIED)}
    (options,) = read_batch([header]) or [None]
    assert options is not None
    assert options.carried is None
    assert options.fault is not None
    (options,) = read_batch([header], by_node=True) or [None]
    assert options == TaskOptions(carried=CARRIED)


def test_what_was_carried_keeps_its_name_although_its_other_headers_cannot_be_read() -> None:
    header = {"$delay_ms": "never", "$task": encode_carried(CARRIED)}
    (options,) = read_batch([header], by_node=True) or [None]
    assert options is not None
    assert options.carried == CARRIED
    assert options.fault is not None


@pytest.mark.parametrize("name", ["emails", "a b", "münchen", "x" * 100])
def test_one_level_of_a_topic_is_a_queue(name: str) -> None:
    assert check_queue(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "/a", "$sys", "+", "a*", "..", "x" * 101, "ü" * 51, "a\n", "\ud800"]
)
def test_what_cannot_be_a_queue_is_refused(name: str) -> None:
    with pytest.raises(BadTask):
        check_queue(name)


# Carried tasks ------------------------------------------------------------------------------------

attempts = st.builds(
    Attempt, st.integers(0, 100), st.integers(0, 2**60), st.text(max_size=20), st.text(max_size=50)
)


@given(
    st.builds(
        Carried,
        id=st.text(max_size=40),
        enqueued_us=st.integers(0, 2**62),
        attempts=st.integers(0, 100),
        history=st.lists(attempts, max_size=5).map(tuple),
        due_us=st.integers(0, 2**62),
        dead_us=st.none() | st.integers(0, 2**62),
        fence=st.integers(0, 2**62),
    ),
    st.none() | st.tuples(st.binary(min_size=16, max_size=16), st.integers(1, 2**62)),
)
def test_what_is_carried_arrives(carried: Carried, place: tuple[bytes, int] | None) -> None:
    if place is not None:
        origin, number = BrokerId(place[0]), place[1]
        carried = Carried(carried.id, carried.enqueued_us, origin=origin, number=number)
    assert decode_carried(encode_carried(carried)) == carried


def test_a_history_that_does_not_fit_loses_the_ends_of_errors_and_then_its_oldest_attempts() -> (
    None
):
    history = tuple(Attempt(n, n, "worker", "e" * ERROR_BYTES_MAX) for n in range(1, 101))
    carried = Carried("i", 1, 100, history)
    text = encode_carried(carried)
    assert len(text) <= CARRIED_BYTES_MAX
    read = decode_carried(text)
    assert read.attempts == 100
    assert [each.attempt for each in read.history] == list(range(1, 101))
    shorter = decode_carried(encode_carried(carried, 1000))
    assert 0 < len(shorter.history) < 100
    assert shorter.history[-1].attempt == 100
    assert decode_carried(encode_carried(carried, 10)).history == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"id":"a"}',
        '{"id":1,"enqueued_us":1}',
        '{"id":"a","enqueued_us":-1}',
        '{"id":"a","enqueued_us":1.5}',
        '{"id":"a","enqueued_us":true}',
        '{"id":"a","enqueued_us":1,"more":1}',
        '{"id":"a","enqueued_us":1,"history":[[1,2,"w"]]}',
        '{"id":"a","enqueued_us":1,"history":[[1,2,"w",3]]}',
        '{"id":"a","enqueued_us":1,"history":{}}',
        '{"id":"a","enqueued_us":1,"from":["00",1]}',
        '{"id":"a","enqueued_us":1,"from":["zz",1]}',
        '{"id":"a","enqueued_us":1,"from":[1]}',
        '{"id":"' + "a" * 200 + '","enqueued_us":1}',
        '{"id":"a","enqueued_us":1,"history":['
        + ",".join(['[1,1,"",""]'] * (HISTORY_MAX + 1))
        + "]}",
        "[" * 100_000,
    ],
)
def test_what_no_node_has_written_is_refused(text: str) -> None:
    with pytest.raises(BadTask):
        decode_carried(text)


@given(st.text(), st.integers(0, 40))
def test_a_cut_text_is_a_beginning_of_whole_characters(text: str, bytes_max: int) -> None:
    short = cut(text, bytes_max)
    assert text.startswith(short) or "\ud800" <= max(text) <= "\udfff"
    assert len(short.encode("utf-8", "replace")) <= bytes_max
