"""Telling apart what msgpack gives: checks that both type checkers understand."""

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_map(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return type(value) is dict or isinstance(value, Mapping)  # the abstract class asks around
