"""What a mirror's word is worth: when it is in force, and when it is silent."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from busnode.replication.mirror_progress import SILENT_S, MirrorProgress
from busnode.wire.ids import BrokerId, LogId, Topic

ORIGIN = BrokerId(bytes(16))
ONE, TWO, THREE = (LogId(ORIGIN, Topic(topic)) for topic in ("/one", "/two", "/three"))
JUST_BEFORE = SILENT_S - 0.001


def begun(at: float = 0.0) -> MirrorProgress:
    """One that has told that it has nothing, of an origin that had nothing."""
    progress = MirrorProgress()
    progress.asked(at)
    progress.heard(at, begun=True)
    return progress


def test_before_it_has_begun_it_is_not_in_force_whatever_it_has() -> None:
    progress = MirrorProgress()
    progress.asked(0.0)
    progress.synced(ONE, 100, 0.0)
    progress.heard(0.1, begun=False)
    assert not progress.in_force
    progress.heard(0.2, begun=True)
    assert progress.in_force


def test_it_is_in_force_when_it_lacks_nothing_that_was_durable() -> None:
    progress = MirrorProgress()
    progress.asked(0.0)
    progress.synced(ONE, 4, 0.0)
    progress.lacks(ONE, 10)
    progress.lacks(TWO, 3)
    progress.lacks(THREE, 0)
    progress.heard(0.1, begun=True)
    assert (progress.in_force, progress.behind) == (False, 9)
    progress.synced(TWO, 3, 0.0)
    progress.heard(0.2, begun=True)
    assert (progress.in_force, progress.behind) == (False, 6)
    progress.synced(ONE, 9, 0.0)
    progress.heard(0.3, begun=True)
    assert (progress.in_force, progress.behind) == (False, 1)
    progress.synced(ONE, 12, 0.0)
    progress.heard(0.4, begun=True)
    assert (progress.in_force, progress.behind) == (True, 0)


def test_what_it_has_already_it_does_not_lack() -> None:
    progress = MirrorProgress()
    progress.synced(ONE, 10, 0.0)
    progress.lacks(ONE, 10)
    progress.heard(0.0, begun=True)
    assert progress.in_force


def test_what_nobody_has_any_more_is_not_waited_for() -> None:
    """The end of a log that has expired, or cannot be read, cannot be sent."""
    progress = MirrorProgress()
    progress.lacks(ONE, 8)
    progress.heard(0.0, begun=True)
    progress.absent(ONE, 1, 8)
    assert progress.in_force
    assert progress.behind == 0


def test_before_a_hole_at_the_end_all_must_be_had() -> None:
    progress = MirrorProgress()
    progress.lacks(ONE, 8)
    progress.heard(0.0, begun=True)
    progress.absent(ONE, 6, 8)
    assert (progress.in_force, progress.behind) == (False, 5)
    progress.synced(ONE, 5, 0.0)
    progress.heard(0.1, begun=True)
    assert progress.in_force


def test_bytes_are_counted_as_messages_are_and_the_whole_is_remembered() -> None:
    progress = MirrorProgress()
    progress.synced(ONE, 2, 0.0)
    progress.lacks(ONE, 12, first_no=1, message_bytes=100.0)
    progress.lacks(TWO, 50, first_no=41, message_bytes=10.0)
    assert (progress.behind, progress.behind_bytes) == (20, 1100.0), "what has expired is not sent"
    progress.synced(ONE, 7, 0.0)
    assert (progress.behind, progress.behind_bytes) == (15, 600.0)
    progress.synced(TWO, 45, 0.0)
    progress.synced(ONE, 20, 0.0)
    assert (progress.behind, progress.behind_bytes) == (5, 50.0)
    progress.absent(TWO, 48, 60)
    assert (progress.behind, progress.behind_bytes) == (2, 20.0)
    progress.synced(TWO, 47, 0.0)
    assert (progress.behind, progress.behind_bytes) == (0, 0.0)
    assert (progress.total, progress.total_bytes) == (20, 1100.0)


def test_a_log_of_which_all_has_expired_is_waited_for_until_that_is_seen() -> None:
    progress = MirrorProgress()
    progress.lacks(ONE, 8, first_no=9)
    progress.heard(0.0, begun=True)
    assert (progress.in_force, progress.behind) == (False, 0)
    progress.absent(ONE, 1, 8)
    assert progress.in_force


def test_how_long_it_lets_us_wait_is_counted_from_what_moved_last() -> None:
    progress = begun()
    assert progress.waiting_s(5.0) == 0.0
    progress.sent(ONE, 5, 10.0)
    progress.sent(TWO, 5, 11.0)
    assert progress.waiting_s(11.5) == 1.5
    progress.synced(ONE, 3, 11.6)
    assert progress.waiting_s(12.0) == 1.0


def test_a_hole_in_the_middle_changes_nothing() -> None:
    progress = MirrorProgress()
    progress.lacks(ONE, 8)
    progress.heard(0.0, begun=True)
    progress.absent(ONE, 2, 5)
    progress.absent(TWO, 1, 5)
    assert not progress.in_force
    progress.synced(ONE, 8, 0.0)
    progress.heard(0.1, begun=True)
    assert progress.in_force


def test_a_hole_in_the_middle_is_at_the_end_when_what_lies_behind_it_cannot_be_sent_either() -> (
    None
):
    """As when it expires while others are asked for what is damaged."""
    progress = MirrorProgress()
    progress.lacks(ONE, 8)
    progress.heard(0.0, begun=True)
    progress.absent(ONE, 2, 3)
    progress.absent(ONE, 5, 5)
    progress.absent(ONE, 6, 6)
    progress.absent(ONE, 7, 9)
    assert (progress.in_force, progress.behind) == (False, 4)
    progress.synced(ONE, 4, 0.0)
    progress.heard(0.1, begun=True)
    assert progress.in_force


def test_a_hole_alone_does_not_put_it_in_force_before_it_has_begun() -> None:
    progress = MirrorProgress()
    progress.lacks(ONE, 8)
    progress.absent(ONE, 1, 8)
    assert not progress.in_force


def test_a_later_answer_with_a_lower_number_takes_nothing_back() -> None:
    progress = begun()
    progress.sent(ONE, 10, 0.0)
    progress.synced(ONE, 10, 0.0)
    progress.synced(ONE, 7, 0.0)
    assert progress.safe_no(ONE) == 10
    assert progress.safe_no(TWO) == 0


def test_one_that_does_not_answer_that_it_was_asked_is_silent() -> None:
    progress = MirrorProgress()
    progress.asked(5.0)
    assert not progress.is_silent(5.0 + JUST_BEFORE)
    assert progress.is_silent(5.0 + SILENT_S)


def test_one_with_nothing_to_answer_is_never_silent() -> None:
    assert not begun(0.0).is_silent(1e9)


def test_one_that_lets_publishes_wait_is_silent() -> None:
    progress = begun()
    progress.sent(ONE, 1, 10.0)
    assert not progress.is_silent(10.0 + JUST_BEFORE)
    progress.sent(ONE, 2, 11.5)
    assert progress.is_silent(10.0 + SILENT_S), "what is sent later gives it no more time"


def test_after_its_answer_it_is_idle_again() -> None:
    progress = begun()
    progress.sent(ONE, 2, 10.0)
    progress.synced(ONE, 2, 0.0)
    progress.heard(10.5, begun=True)
    assert not progress.is_silent(1e9)
    progress.sent(ONE, 3, 100.0)
    assert not progress.is_silent(100.0 + JUST_BEFORE)
    assert progress.is_silent(100.0 + SILENT_S)


def test_one_that_goes_on_slowly_is_not_silent() -> None:
    progress = begun()
    progress.sent(ONE, 100, 0.0)
    for number in range(1, 100):
        progress.synced(ONE, number, number * JUST_BEFORE)
        progress.heard(number * JUST_BEFORE, begun=True)
        assert not progress.is_silent((number + 1) * JUST_BEFORE)
    assert progress.is_silent(99 * JUST_BEFORE + SILENT_S)


def test_answers_about_one_log_do_not_excuse_silence_about_another() -> None:
    """The copy of a log may be lost to writing there while all others go on: who publishes to that
    one must not wait for ever."""
    progress = begun()
    progress.sent(ONE, 1, 0.0)
    for step in range(1, 20):
        progress.sent(TWO, step, step / 10 - 0.05)
        progress.synced(TWO, step, step / 10)
        progress.heard(step / 10, begun=True)
    assert progress.is_silent(SILENT_S)


def test_logs_may_be_answered_in_any_order() -> None:
    progress = begun()
    for log_id in (ONE, TWO, THREE):
        progress.sent(log_id, 5, 0.0)
    for step, log_id in enumerate((THREE, ONE, TWO)):
        assert progress.is_silent(SILENT_S)
        progress.synced(log_id, 5, step / 10)
        progress.heard(step / 10, begun=True)
    assert not progress.is_silent(1e9)


def test_what_was_synced_before_it_was_sent_again_needs_no_answer() -> None:
    """A session that broke had brought it: the answer overtakes what is sent a second time."""
    progress = begun()
    progress.synced(ONE, 10, 0.0)
    progress.sent(ONE, 10, 0.0)
    progress.heard(0.1, begun=True)
    assert not progress.is_silent(1e9)


@dataclass
class Expected:
    """A log as the model sees it."""

    safe_no: int = 0
    lacking_no: int = 0
    sent_no: int = 0
    since: float = 0.0
    """Since when nothing has moved though something was to be answered."""


@dataclass
class Model:
    logs: dict[LogId, Expected] = field(
        default_factory=lambda: {log_id: Expected() for log_id in (ONE, TWO, THREE)}
    )
    asked_at: float | None = 0.0
    begun: bool = False
    in_force: bool = False


class AgainstAModel(RuleBasedStateMachine):
    """Whatever is lacked, sent, synced and heard, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = MirrorProgress()
        self.progress.asked(0.0)
        self.model = Model()
        self.now = 0.0

    log_ids = st.sampled_from([ONE, TWO, THREE])
    numbers = st.integers(1, 8)

    @rule(step=st.sampled_from([0.25, 0.5, 1.0]))
    def time_passes(self, step: float) -> None:
        self.now += step

    @precondition(lambda self: not self.model.begun)
    @rule(found=st.dictionaries(log_ids, numbers))
    def it_begins(self, found: dict[LogId, int]) -> None:
        for log_id, end_no in found.items():
            self.progress.lacks(log_id, end_no, message_bytes=16.0)
            self.model.logs[log_id].lacking_no = end_no
        self.model.begun = True
        self._heard()

    @precondition(lambda self: self.model.begun)
    @rule(log_id=log_ids, more=numbers)
    def something_is_sent(self, log_id: LogId, more: int) -> None:
        log = self.model.logs[log_id]
        if log.sent_no <= log.safe_no:
            log.since = self.now
        log.sent_no += more
        self.progress.sent(log_id, log.sent_no, self.now)

    @rule(answer=st.dictionaries(log_ids, st.integers(0, 20), min_size=1))
    def it_answers(self, answer: dict[LogId, int]) -> None:
        for log_id, safe_no in answer.items():
            log = self.model.logs[log_id]
            if safe_no > log.safe_no:
                log.safe_no, log.since = safe_no, self.now
            self.progress.synced(log_id, safe_no, self.now)
        self._heard()

    def _heard(self) -> None:
        model = self.model
        model.asked_at = None if model.begun else self.now
        if model.begun and all(log.lacking_no <= log.safe_no for log in model.logs.values()):
            model.in_force = True
        self.progress.heard(self.now, begun=model.begun)

    @invariant()
    def it_says_what_the_model_says(self) -> None:
        model, progress = self.model, self.progress
        assert progress.in_force == model.in_force
        for log_id, log in model.logs.items():
            assert progress.safe_no(log_id) == log.safe_no
        waits = [log.since for log in model.logs.values() if log.sent_no > log.safe_no]
        if model.asked_at is not None:
            waits.append(model.asked_at)
        silent = any(self.now - since >= SILENT_S for since in waits)
        assert progress.is_silent(self.now) == silent
        lacking = (max(0, log.lacking_no - log.safe_no) for log in model.logs.values())
        assert progress.behind == sum(lacking)
        assert progress.behind_bytes == 16 * progress.behind


TestAgainstAModel = AgainstAModel.TestCase
