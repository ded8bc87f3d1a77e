"""Errors that came over the wire, as exceptions again."""

from busnode.wire.control import Error
from busnode.wire.errors import BY_CODE, BusnodeError


def refusal(code: str, text: str, retry_after_s: float | None = None) -> BusnodeError:
    """The exception for a code. One that a newer node invented keeps its code."""
    kind = BY_CODE.get(code)
    if kind is None:
        kind = type("UnknownError", (BusnodeError,), {"code": code})
    return kind(text, retry_after_s=retry_after_s)


def refusal_of(message: Error) -> BusnodeError:
    return refusal(message.code, message.text, message.retry_after_s)


def again(error: BusnodeError) -> BusnodeError:
    """The same error anew: several tasks may each raise one, and a traceback has one owner."""
    return refusal(error.code, error.text, error.retry_after_s)
