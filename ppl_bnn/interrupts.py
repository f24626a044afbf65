"""Ctrl-C as a request to stop at the next good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM inside into a request; a second one acts as ever.

    Yields
    ------
    callable
        Tells whether to stop. Outside of the main thread, where Python lets no one handle signals,
        it never does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: bool(asked)
    finally:
        restore()
