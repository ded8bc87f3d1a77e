"""Importing a large library while the loop goes on."""

import sys
from importlib import import_module
from types import ModuleType

import trio


async def import_in_thread(name: str) -> ModuleType:
    """The module; imported in a thread where it has not been, since that takes longer than the
    loop may be held up."""
    found = sys.modules.get(name)
    if found is None or getattr(found.__spec__, "_initializing", False):
        return await trio.to_thread.run_sync(import_module, name)
    return found
