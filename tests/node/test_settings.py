"""Settings: where they come from, which one wins, and what a wrong one is answered with."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from busnode.node.config import BadSetting, NodeConfig
from busnode.node.embedding import NodeSettings
from busnode.node.logs import LogConfig
from busnode.node.setting_kinds import Duration, Port, Size, Switch
from busnode.node.settings import (
    SETTINGS,
    Settings,
    check,
    is_loopback,
    resolve,
    safe_name,
)

ID = {"cluster_id": "x"}


def refusal(
    flags: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> str:
    with pytest.raises(BadSetting) as raised:
        resolve(flags, environment or {}, None if file is None else ("bus.toml", file))
    return raised.value.text


def test_without_any_setting_but_the_cluster_all_is_as_the_design_has_it() -> None:
    assert resolve(ID, {}) == Settings(NodeConfig("x"), LogConfig())


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    file = 'cluster_id = "file"\nport = 1\nhttp-port = 2\nretain = "3d"'
    around = {"BUSNODE_PORT": "11", "BUSNODE_HTTP_PORT": "12", "HOME": "/root"}
    node = resolve({"port": "21"}, around, ("bus.toml", file)).node
    assert node == NodeConfig("file", port=21, http_port=12, retain_s=3 * 86400.0)


def test_every_field_of_a_node_can_be_set_and_embedded() -> None:
    names = {field.name for field in fields(NodeConfig)}
    assert {each.field for each in SETTINGS if each.owner is NodeConfig} == names
    assert NodeSettings.__optional_keys__ == names - {"cluster_id"}
    assert {each.field for each in SETTINGS if each.owner is LogConfig} == {"format", "level"}


def test_every_default_is_something_that_could_be_written() -> None:
    for setting in SETTINGS:
        if setting.default is not None:
            config = NodeConfig("x") if setting.owner is NodeConfig else LogConfig()
            assert setting.kind.read(setting.default) == getattr(config, setting.field)


def test_a_cluster_without_an_id_is_told_where_to_give_it_one() -> None:
    text = refusal({})
    for place in ("--cluster-id", "BUSNODE_CLUSTER_ID", "cluster_id"):
        assert place in text


def test_an_empty_variable_is_none() -> None:
    assert resolve(ID, {"BUSNODE_PORT": ""}).node.port == 4250


def test_variables_of_others_are_left_alone() -> None:
    resolve(ID, {"BUSNODE_URL": "bus://x", "BUSNODE_CONFIG": "x", "BUSNODES": "5"})


@pytest.mark.parametrize(
    ("flags", "environment", "file", "place"),
    [
        ({"retain": "1"}, {}, None, "--retain: '1' "),
        ({}, {"BUSNODE_RETAIN": "soon"}, None, "BUSNODE_RETAIN: 'soon' "),
        ({}, {}, "retain = 60", "bus.toml: retain: '60' "),
        ({}, {}, "http-port = true", "bus.toml: http-port: 'True' "),
        ({}, {}, "port = 65536", "bus.toml: port: '65536' "),
        ({"port": "-1"}, {}, None, "--port: '-1' "),
        ({"port": "off"}, {}, None, "--port: 'off' "),
        ({"retain_size": "10"}, {}, None, "--retain-size: '10' "),
        ({"name": "../x"}, {}, None, "--name: '../x' "),
        ({"name": ".."}, {}, None, "--name: '..' "),
        ({"cluster_id": "a\nb"}, {}, None, "--cluster-id: "),
        ({"cluster_id": "x" * 129}, {}, None, "--cluster-id: "),
        ({"storage": "tape"}, {}, None, "--storage: 'tape' is none of files, memory"),
        ({"heartbeat": "21s"}, {}, None, "--heartbeat: '21s' is out of bounds: 100ms to 20s"),
        ({"clients_max": "0"}, {}, None, "--clients-max: '0' "),
        ({"log_level": "loud"}, {}, None, "--log-level: 'loud' is none of debug, info"),
        ({}, {"BUSNODE_INSECURE": "maybe"}, None, "BUSNODE_INSECURE: 'maybe' "),
        ({}, {}, "[node]\nport = 1", "bus.toml: 'node' is no setting"),
    ],
)
def test_a_wrong_value_is_one_error_that_names_its_place(
    flags: dict[str, object], environment: dict[str, str], file: str | None, place: str
) -> None:
    text = refusal({**ID, **flags}, environment, file)
    assert text.startswith(place)
    assert "\n" not in text


def test_a_wrong_value_is_found_also_where_a_stronger_one_covers_it() -> None:
    assert refusal({**ID, "port": "1"}, {"BUSNODE_PORT": "x"}).startswith("BUSNODE_PORT: ")


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    assert "BUSNODE_PORT?" in refusal(ID, {"BUSNODE_PROT": "1"})
    assert "did you mean retain?" in refusal(ID, {}, "retian = '1d'")
    assert refusal(ID, {"busnode_x": "", "BUSNODE_port": "1"}).startswith("the environment")


def test_a_key_that_stands_there_twice_is_an_error() -> None:
    assert "twice" in refusal(ID, {}, "http_port = 1\nhttp-port = 2")


def test_a_file_that_is_no_toml_is_told_with_its_line() -> None:
    assert refusal(ID, {}, "port = 1\nport").startswith("bus.toml is no TOML: ")
    assert "line 2" in refusal(ID, {}, "port = 1\nport\n")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("90s", 90), ("1.5h", 5400), ("15m", 900), ("1d", 86400), ("2 w", 1209600)],
)
def test_a_duration_has_a_unit(written: str, seconds: float) -> None:
    assert Duration().read(written) == seconds


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("512B", 512), ("64MiB", 64 << 20), ("10GB", 10**10), ("1.5KiB", 1536), ("2 kB", 2000)],
)
def test_a_size_has_a_unit(written: str, size_bytes: int) -> None:
    assert Size().read(written) == size_bytes


@pytest.mark.parametrize("raw", ["", "1", "s", "-1s", "1x", "1S", "1e3s", "1s ", "１s", 5, None])
def test_what_is_no_duration_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        Duration().read(raw)


@pytest.mark.parametrize("raw", ["", "1", "B", "-1B", "1X", "9" * 400 + "B", "1mib", 5, None])
def test_what_is_no_size_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        Size().read(raw)


@pytest.mark.parametrize("raw", ["", "x", "1.5", "１", "99999999999999999999", True, None, 1.0, -1])
def test_what_is_no_port_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="port"):
        Port().read(raw)


def test_http_can_be_off_and_a_free_port_is_no_port_that_is_off() -> None:
    assert Port(can_be_off=True).read("off") is None
    assert Port(can_be_off=True).read(0) == 0


@pytest.mark.parametrize(
    ("raw", "value"), [(True, True), ("1", True), ("YES", True), ("off", False), (False, False)]
)
def test_a_switch_is_written_in_several_ways(raw: object, value: bool) -> None:
    assert Switch().read(raw) is value


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "10.0.0.1"])
def test_listening_beyond_this_machine_must_be_said_aloud(host: str) -> None:
    assert "--insecure" in refusal({**ID, "listen": host})
    assert resolve({**ID, "listen": host, "insecure": True}, {}).node.listen == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_this_machine_is_no_stranger(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "wrong", [{"name": "a/b"}, {"cluster_id": ""}, {"storage": "tape"}, {"listen": "0.0.0.0"}]
)
def test_what_a_program_sets_is_checked_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        check(NodeConfig(**{"cluster_id": "x", **wrong}))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("web-1.example.org", "web-1.example.org"),
        ("Bülent's Mac", "B-lent-s-Mac"),
        ("..", "node"),
        ("", "node"),
        ("-x-", "x"),
        ("a" * 100, "a" * 63),
    ],
)
def test_a_host_name_becomes_a_name_that_is_safe_in_a_path(host: str, name: str) -> None:
    assert safe_name(host) == name
    check(NodeConfig("x", name))
