"""An error in a few words: the one inside of all groups, and where it was raised."""

from typing import cast


def innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = "" if where is None else f" ({where.tb_frame.f_code.co_qualname}:{where.tb_lineno})"
    return f"{type(error).__name__}: {error!s:.300}{place}"
