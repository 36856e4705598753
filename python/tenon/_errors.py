"""The errors that tenon raises. All are RuntimeErrors."""


class Error(RuntimeError):
    """A call failed; the message says what was expected and what was found."""


class CaptureError(Error):
    """A step that cannot be made a graph; the message names the op and the line of the user's code."""


class NotSupported(Error):
    """Something that Tenon does not have, by name: an optimizer, a setting, a dtype, copying a Step."""


class DoesNotFit(Error):
    """A plan over the limit. `limit`, `peak`, `reserve` and `least` are bytes; `least` is the least limit that
    would do, of all that was planned; `table` is what the plan that was closest has alive at its peak, as text."""

    def __init__(self, message, table, limit, peak, reserve, least):
        super().__init__(message)
        self.table = table
        self.limit, self.peak, self.reserve, self.least = limit, peak, reserve, least
