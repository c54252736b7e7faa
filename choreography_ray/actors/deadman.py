"""How a process is ended by the kernel when its lease runs out, whatever it is doing then [S10.2]."""

from __future__ import annotations

import ctypes
import os
import signal

_CLOCK_BOOTTIME = 7
_SIGEV_SIGNAL = 0


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("sigev_value", ctypes.c_void_p),
        ("sigev_signo", ctypes.c_int),
        ("sigev_notify", ctypes.c_int),
        ("_padding", ctypes.c_byte * 48),
    )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Deadman:
    """A POSIX timer on the clock that goes on while the machine sleeps. Its signal is SIGKILL: no body can catch it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Sigevent(None, signal.SIGKILL, _SIGEV_SIGNAL)
        self._check(self._libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)))

    def arm(self, seconds: float) -> None:
        """End this process so many seconds from now; a later call replaces it. Not above zero: at once."""
        seconds = max(seconds, 1e-6)
        value = _Timespec(int(seconds), int(seconds % 1 * 1_000_000_000) or 1)
        timer = _Itimerspec(_Timespec(0, 0), value)
        self._check(self._libc.timer_settime(self._timer, 0, ctypes.byref(timer), None))

    def _check(self, result: int) -> None:
        if result != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
