"""Errors: one class for each code of the engine."""

from __future__ import annotations


class Error(RuntimeError):
    """An error of the engine.

    what: what was tried, given and allowed.  path, offset: the file concerned, or None. fix: what
    to do, or None if the text does not say.
    """

    def __init__(
        self, text: str, *, what: str = "", path: str | None = None, offset: int | None = None
    ) -> None:
        super().__init__(text)
        self.what = what or text
        self.path = path
        self.offset = offset
        head, semicolon, fix = self.what.splitlines()[0].rpartition("; ")
        self.fix = fix if semicolon and head else None


class IoError(Error):
    """The device or the kernel failed a transfer or a call."""


class NoSpaceError(Error):
    """A disk or quota is full."""


class CorruptError(Error):
    """Bytes differ from those written."""


class InvalidError(Error, ValueError):
    """An argument is wrong, or a call is out of order."""


class MissingError(InvalidError, AssertionError):
    """A required value is missing. Also an AssertionError, because DeepSpeed asserts this."""


class AssertedError(InvalidError, AssertionError):
    """A condition fails that DeepSpeed asserts."""


class ExhaustedError(Error):
    """A budget or a limit is used up."""


class CancelledError(Error):
    """The request was withdrawn."""


class TimeoutExpiredError(Error, TimeoutError):
    """A deadline passed."""


class BusyError(Error):
    """Another process holds the lock."""


class UnsupportedError(Error, NotImplementedError):
    """Known, but not available here or not yet."""


class PeerLostError(Error):
    """Another rank has ended."""


CLASSES: dict[str, type[Error]] = {
    "Io": IoError,
    "NoSpace": NoSpaceError,
    "Corrupt": CorruptError,
    "Invalid": InvalidError,
    "Exhausted": ExhaustedError,
    "Cancelled": CancelledError,
    "Timeout": TimeoutExpiredError,
    "Busy": BusyError,
    "Unsupported": UnsupportedError,
    "PeerLost": PeerLostError,
}


def make(code: str, what: str, text: str, path: str, offset: int) -> Error:
    """The exception of an engine's error; called by artesian._C."""
    return CLASSES[code](text, what=what, path=path or None, offset=offset if path else None)
