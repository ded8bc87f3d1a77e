"""Where tasks are that keep an id from before they were carried here.

A node that comes back carries all its unfinished tasks, and there may be millions: 16 bytes each in
two arrays that are searched from end to end. People ask for ids, and not often.
"""

from array import array

from busnode.node.task_log import TaskBatch


class CarriedIds:
    """By the incarnation in an id: the numbers in the ids, and those here."""

    def __init__(self) -> None:
        self._numbers: dict[str, tuple[array[int], array[int]]] = {}

    def note(self, batch: TaskBatch) -> None:
        """Tasks have come; most were never carried."""
        for number, options in enumerate(batch.options or (), batch.first_no):
            if options is not None and options.carried is not None:
                first, _, text = options.carried.id.partition("-")
                if text.isascii() and text.isdigit() and len(text) < 19:
                    known = self._numbers.setdefault(first, (array("Q"), array("Q")))
                    known[0].append(int(text))
                    known[1].append(number)

    def find(self, task_id: str) -> int | None:
        """The number here under which it was carried last."""
        first, _, text = task_id.partition("-")
        known = self._numbers.get(first)
        if known is None or not (text.isascii() and text.isdigit() and len(text) < 19):
            return None
        there, here = known
        wanted, found, at = int(text), None, 0
        try:
            while True:
                at = there.index(wanted, at)
                found = here[at]
                at += 1
        except ValueError:
            return found
