"""Makes this process look as on Windows to what is imported from now on.

Modules, functions and signals that CPython has on POSIX systems only are gone. What was imported
before keeps them: the standard library, Celery and kombu, which have their own code for Windows.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import time
from contextlib import suppress

#: Imported first, with what they import.
BEFORE = (
    *(
        "billiard.connection",
        "billiard.pool",
        "celery.apps.worker",
        "celery.bin.worker",
        "celery.concurrency.solo",
    ),
    *("celery.concurrency.thread", "kombu.transport.memory", "kombu.transport.redis"),
    *("kombu.transport.SQS", "multiprocessing.connection", "pytest", "sse_starlette"),
)
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
NAMES = {
    os: {
        *(
            "fchown",
            "fork",
            "forkpty",
            "getpgid",
            "getpgrp",
            "killpg",
            "memfd_create",
            "mkfifo",
            "pipe2",
        ),
        *("register_at_fork", "sched_getaffinity", "setpgid", "setsid", "uname", "wait", "waitid"),
        *("getuid", "geteuid", "getgid", "getegid", "pread", "pwrite", "P_ALL", "WNOHANG"),
        *("MFD_CLOEXEC", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "WEXITED", "WNOWAIT", "sysconf"),
    },
    signal: {
        *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP"),
        *("SIGCONT", "SIGPIPE", "setitimer", "pthread_kill", "pthread_sigmask", "sigwait"),
    },
    socket: {"AF_UNIX", "SCM_RIGHTS", "send_fds", "recv_fds"},
    time: {
        *("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_REALTIME", "CLOCK_UPTIME_RAW"),
        *("clock_gettime", "clock_settime"),
    },
}


def pretend() -> None:
    """Take away what there is not on Windows."""
    if sys.platform == "win32":
        return
    for name in BEFORE:
        with suppress(ImportError):  # of an extra
            importlib.import_module(name)
    sys.platform = "win32"
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # so that importing it fails
    for module, names in NAMES.items():
        for name in names & vars(module).keys():
            delattr(module, name)


pretend()
