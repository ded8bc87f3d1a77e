"""What people see."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from busnode.node.presentation import (
    Column,
    Lines,
    counted,
    duration,
    moment,
    preview,
    printable,
    progress,
    show_facts,
    show_table,
    size,
    span,
)

UTC_US = 1_700_000_000_123_456
DAY_US = 86_400_000_000


def terminal(width: int) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, color_system=None)
    return console, written


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (15_249_000, "15.2 MB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (2_500_000_000_000, "2.5 TB"),
        (7_000_000_000_000_000, "7000.0 TB"),
    ],
)
def test_sizes_have_decimal_units(count: int, text: str) -> None:
    assert size(count) == text


def test_one_is_singular() -> None:
    assert [counted(n, "log") for n in (0, 1, 1200)] == ["0 logs", "1 log", "1,200 logs"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0031, "3 ms"),
        (12.34, "12.3 s"),
        (250, "4 min 10 s"),
        (3599.7, "1 h 0 min"),
        (7519, "2 h 5 min"),
        (3 * 86400 + 4 * 3600 + 59, "3 d 4 h"),
    ],
)
def test_durations_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_moment_is_read_as_a_date() -> None:
    assert moment(UTC_US) == "2023-11-14 22:13:20"
    assert moment(UTC_US, "milliseconds") == "2023-11-14 22:13:20.123"


@pytest.mark.parametrize("utc_us", [2**64 - 1, -(2**63)])
def test_a_moment_in_no_calendar_is_its_number(utc_us: int) -> None:
    assert moment(utc_us) == f"{utc_us} µs"
    assert str(utc_us) in span(UTC_US, utc_us)


def test_a_span_does_not_repeat_what_its_ends_share() -> None:
    assert span(UTC_US, UTC_US + 1) == "2023-11-14 22:13"
    assert span(UTC_US, UTC_US + 60_000_000) == "2023-11-14 22:13 – 22:14"
    assert span(UTC_US, UTC_US + DAY_US) == "2023-11-14 22:13 – 11-15 22:13"
    assert span(UTC_US, UTC_US + 366 * DAY_US) == "2023-11-14 22:13 – 2024-11-14 22:13"


def test_what_cannot_be_seen_is_escaped() -> None:
    assert printable("naïve – ✓ 日本") == "naïve – ✓ 日本"
    assert printable("a\tb\r\n\x1b[0m\x9b\u202e\x00") == "a\\tb\\r\\n\\x1b[0m\\x9b\\u202e\\x00"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "(empty)"),
        (b"21.5", "21.5"),
        (b"\xff\x00", "0xff00"),
        (b"[red]x[/red]", "[red]x[/red]"),
        (b"12345678901234567890", "12345678901234567890"),
        (b"123456789012345678901", "12345678901234… 21 B"),
        ("é".encode() * 50, "é" * 13 + "… 100 B"),
        (b"\xfe" * 2000, "0xfefefefefe… 2.0 kB"),
    ],
)
def test_a_payload_is_shown_on_one_line_and_cut(payload: bytes, text: str) -> None:
    assert preview(payload, 20) == text


def test_a_character_that_the_cut_goes_through_does_not_make_text_binary() -> None:
    for shift in range(4):
        payload = b"x" * shift + "😀".encode() * 1000
        assert preview(payload, 20).startswith("x" * shift + "😀")


COLUMNS = [
    Column("broker"),
    Column("topic", style="cyan"),
    Column("messages", justify="right", beside="messages {}"),
    Column("utc"),
]
ROWS = [
    ("0f3a9c1e", "/plant/north/temp", "1,200", "2023-11-14 22:13"),
    ("b7d24410", "/日本", "7", "2023-11-14 22:13"),
]


def test_in_a_pipe_a_table_is_plain_and_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(COLUMNS, [*ROWS, ("ffffffff", "/" + "x" * 200, "1", "")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("0f3a9c1e  /plant/north/temp ")
    assert lines[1].endswith("     1,200  2023-11-14 22:13")
    assert all(line == line.rstrip() for line in lines)


def test_on_a_wide_terminal_a_table_has_a_line_for_each_row() -> None:
    console, written = terminal(100)
    show_table(COLUMNS, ROWS, names=2, on=console)
    title, *rows = written.getvalue().splitlines()
    assert title.split() == ["broker", "topic", "messages", "utc"]
    assert [row.split()[0] for row in rows] == ["0f3a9c1e", "b7d24410"]
    assert cell_len(rows[0].rstrip()) == cell_len(rows[1].rstrip())


@pytest.mark.parametrize("width", [30, 40, 52])
def test_on_a_narrow_terminal_the_facts_stand_below_the_names(width: int) -> None:
    console, written = terminal(width)
    show_table(COLUMNS, ROWS, names=2, on=console)
    lines = written.getvalue().splitlines()
    assert lines[0].rstrip() == "0f3a9c1e  /plant/north/temp"
    assert lines[1].startswith("      messages 1,200")
    assert "2023-11-14 22:13" in written.getvalue()
    assert max(map(cell_len, lines)) <= width


def test_a_sentence_is_broken_into_lines_before_a_table_is_given_up() -> None:
    console, written = terminal(60)
    sentence = "the answer is the same for what is not allowed and not there"
    show_table([Column("code"), Column("meaning", wraps=True)], [("X" * 20, sentence)], on=console)
    lines = written.getvalue().splitlines()
    assert lines[0].split() == ["code", "meaning"]
    assert len(lines) == 3
    assert max(map(cell_len, lines)) <= 60


def test_facts_stand_below_their_title(capsys: pytest.CaptureFixture[str]) -> None:
    show_facts("BAD_FRAME", {"meaning": "no frame", "what to do": "look"})
    assert capsys.readouterr().out == "BAD_FRAME\n  meaning     no frame\n  what to do  look\n"


def test_a_payload_goes_below_where_hardly_any_of_it_would_fit() -> None:
    console, written = terminal(40)
    lines = Lines(console)
    short, long = [("0f3a9c1e /a ", "")], [("0f3a9c1e /plant/north/temperature ", "")]
    lines.write([lines.with_payload(short, b"x" * 100), lines.with_payload(long, b"y" * 100)])
    lines.write([lines.with_payload(long, b"21.5")])
    assert [line.rstrip() for line in written.getvalue().splitlines()] == [
        f"0f3a9c1e /a {'x' * 21}… 100 B",
        "0f3a9c1e /plant/north/temperature",
        f"      {'y' * 27}… 100 B",
        "0f3a9c1e /plant/north/temperature 21.5",
    ]


def test_markup_in_what_is_shown_is_text() -> None:
    console, written = terminal(80)
    Lines(console).write([[("[bold]:smile:", "bold")]])
    assert written.getvalue() == "[bold]:smile:\n"


def test_there_is_no_bar_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("verifying", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")
