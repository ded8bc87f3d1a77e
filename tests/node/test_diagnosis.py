"""What is made of what was seen, also of what no test can bring about on this machine."""

import platform
import sys
import sysconfig

import pytest

from busnode.node import diagnosis
from busnode.node.diagnosis import Finding, Verdict
from busnode.node.seed_greeting import SeedAnswer
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.discovery import Hint
from busnode.world.network import Address
from busnode.world.real_multicast import Multicast
from busnode.world.real_process import DiskSpace, FileLimits, Interpreter, interpreter

from .test_cluster_view import peer, status, up

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED
SEED = Address("10.0.0.7", 4251)
GB = 10**9


def hint(cluster_id: str, name: str = "n1", protocol: int = PROTOCOL_VERSION) -> Hint:
    return Hint((SEED,), "mdns", cluster_id, protocol, BrokerId(name.encode() * 8), name)


def verdict(finding: Finding | None) -> Verdict:
    assert finding is not None
    assert (finding.advice is None) == (finding.verdict is OK), "who is not well wants advice"
    return finding.verdict


@pytest.mark.parametrize(
    ("ahead_s", "round_trip_s", "expected"),
    [(0.0, 0.01, OK), (0.9, 0.01, OK), (-1.1, 0.01, WARNING), (1.1, 0.01, WARNING), (1.5, 2.0, OK)],
)
def test_clocks_may_be_a_second_apart(
    ahead_s: float, round_trip_s: float, expected: Verdict
) -> None:
    assert verdict(diagnosis.of_clock(ahead_s, round_trip_s)) is expected


def test_a_clock_is_told_which_way_it_is_wrong() -> None:
    assert diagnosis.of_clock(90.0, 0.0).seen == "the node's is 1 min 30 s ahead of this machine's"
    assert diagnosis.of_clock(-5.0, 0.0).seen == "the node's is 5.0 s behind this machine's"


def test_a_node_that_is_not_ready_fails_with_its_reason() -> None:
    found = status(ready=False, unready_reason="storage: persistent messages are refused")
    finding = diagnosis.of_readiness(found)
    assert (verdict(finding), finding.seen) == (FAILED, found["unready_reason"])


def test_a_mesh_with_a_missing_link_fails_and_a_node_that_is_down_is_worth_a_warning() -> None:
    assert verdict(diagnosis.of_mesh(status(up("n2"), up("n3")))) is OK
    assert verdict(diagnosis.of_mesh(status(up("n2"), missing=(("n2", "n3"),)))) is FAILED
    assert verdict(diagnosis.of_mesh(status(up("n2"), up("n3", dials_us=False)))) is WARNING
    finding = diagnosis.of_mesh(status(up("n2"), peer("n3", error="n3:4251: no answer in time")))
    assert verdict(finding) is WARNING
    assert "1 more does not answer: n3 (n3:4251: no answer in time)" in finding.seen


def test_a_discovery_that_fails_is_told_in_the_nodes_own_words() -> None:
    found = status()
    found["cluster"]["discovery"] = {"failure": "OSError: no route", "events": 0}
    finding = diagnosis.of_discovery(found)
    assert verdict(finding) is FAILED
    assert "OSError: no route" in finding.seen


def test_multicast_that_is_not_heard_fails_with_the_reason_of_the_system() -> None:
    finding = diagnosis.of_multicast(Multicast(failure="OSError: no device"), ["10.0.0.7"])
    assert verdict(finding) is FAILED
    assert "10.0.0.7 was not heard: OSError: no device" in finding.seen
    assert verdict(diagnosis.of_multicast(Multicast(heard_own=True), None)) is OK


@pytest.mark.parametrize(
    ("announced", "explicit", "expected", "seen"),
    [
        ([hint("x")], True, OK, "1 node of cluster 'x'"),
        ([hint("x"), hint("prod")], True, OK, "1 node of cluster 'x'; also 1 node of cluster 'p"),
        (
            [hint("prod"), hint("prod", "n2")],
            True,
            FAILED,
            "2 nodes of cluster 'prod' are announced, none of 'x'",
        ),
        ([hint("prod")], False, WARNING, "1 node of cluster 'prod' is announced, none of 'x'"),
        ([], True, WARNING, "no node of cluster 'x' is announced, nor of any other"),
    ],
)
def test_a_wrong_cluster_id_can_be_seen(
    announced: list[Hint], explicit: bool, expected: Verdict, seen: str
) -> None:
    finding = diagnosis.of_announced(announced, "x", explicit=explicit)
    assert verdict(finding) is expected
    assert finding is not None
    assert finding.seen.startswith(seen)


def test_many_clusters_are_counted_and_not_all_named() -> None:
    finding = diagnosis.of_announced([hint(f"c{n}") for n in range(9)], None, explicit=False)
    assert finding is not None
    assert finding.seen.endswith(" and 4 clusters more")


def test_another_protocol_fails_in_this_cluster_alone() -> None:
    other = hint("x", protocol=PROTOCOL_VERSION + 1)
    assert verdict(diagnosis.of_protocol([other], "x")) is FAILED
    assert diagnosis.of_protocol([other, hint("y")], "y") is None


def test_a_seed_of_another_cluster_is_told_as_the_node_says_it() -> None:
    refused = SeedAnswer(SEED, None, "WRONG_CLUSTER", "this one is of 'prod'")
    finding = diagnosis.of_seed(refused, "x")
    assert verdict(finding) is FAILED
    assert finding.seen == f"the node at {SEED} answers WRONG_CLUSTER: this one is of 'prod'"
    assert verdict(diagnosis.of_seed(refused, None)) is OK  # nobody has said which is the right one
    old = SeedAnswer(SEED, None, "BAD_VERSION", "speaks 2")
    assert diagnosis.of_seed(old, "x").advice == "Upgrade the older side."
    unknown = SeedAnswer(SEED, None, "\x1b[2J", "\x1b[2J")
    assert "\x1b" not in str(diagnosis.of_seed(unknown, "x"))


def test_a_node_on_loopback_is_a_fault_where_others_are_to_reach_it() -> None:
    found = status()
    assert verdict(diagnosis.of_listening(found, None, [])) is OK
    assert verdict(diagnosis.of_listening(found, "127.0.0.1", [])) is OK
    assert verdict(diagnosis.of_listening(found, "10.0.0.1", [])) is FAILED
    assert verdict(diagnosis.of_listening(found, None, [SeedAnswer(SEED, "n2")])) is FAILED
    found["addresses"] = {"peer": "[::1]:4251"}
    assert verdict(diagnosis.of_listening(found, "10.0.0.1", [])) is FAILED
    found["addresses"] = {"peer": "10.0.0.1:4251"}
    assert verdict(diagnosis.of_listening(found, "10.0.0.1", [])) is OK
    found["addresses"] = {}
    assert diagnosis.of_listening(found, None, []) is None


def test_few_files_are_worth_a_warning() -> None:
    plenty = FileLimits(524_288, 10_000, 1_000_000)
    assert verdict(diagnosis.of_files(plenty)) is OK
    assert verdict(diagnosis.of_files(plenty._replace(allowed=1024))) is WARNING
    assert verdict(diagnosis.of_files(plenty._replace(open_everywhere=950_000))) is WARNING


def test_a_python_without_optimizations_is_worth_a_warning() -> None:
    assert verdict(diagnosis.of_interpreter(Interpreter("/usr/bin/python3", "3.11.2", True))) is OK
    finding = diagnosis.of_interpreter(Interpreter("/home/a/python3", "3.11.7", False))
    assert verdict(finding) is WARNING
    assert finding.seen.startswith("Python 3.11.7, /home/a/python3, was compiled without")


def test_what_doctor_sees_of_this_python_is_what_runs() -> None:
    seen = interpreter()
    assert (seen.path, seen.version) == (sys.executable, platform.python_version())
    arguments = sysconfig.get_config_var("CONFIG_ARGS")
    assert seen.is_optimized or "--enable-optimizations" not in arguments


def test_a_disk_that_is_nearly_full_is_worth_a_warning_and_a_full_one_fails() -> None:
    assert verdict(diagnosis.of_disk("/data", DiskSpace(50 * GB, 100 * GB))) is OK
    assert verdict(diagnosis.of_disk("/data", DiskSpace(5 * GB, 100 * GB))) is WARNING
    assert verdict(diagnosis.of_disk("/data", DiskSpace(GB // 10, 100 * GB))) is FAILED
