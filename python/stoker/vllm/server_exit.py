"""The exit status of vLLM's API server after a failure that the plug-in has reported.

vLLM's server, once its engine is dead, shuts down by itself within some 5 s, with status 0. So the process that the
user started listens on a datagram socket in the abstract namespace, whose name its engine and workers inherit in
STOKER_VLLM_SERVER, and a worker that stops for a failed launch says so there. The process then waits until its engine
processes are gone, by when the error is on the clients' streams, and ends with status 70, less than 5 s after the
report. A report counts only if it comes from this process's user. `register` leaves this out in a script that uses
`vllm.LLM`, where the exception arrives, and under VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1.
"""

import contextlib
import logging
import multiprocessing
import os
import secrets
import socket
import struct
import sys
import threading
import time

VARIABLE = "STOKER_VLLM_SERVER"
EXIT_STATUS = 70  # EX_SOFTWARE of sysexits.h
ENGINES_SECONDS = 4.0  # for the engine processes to end
STREAMS_SECONDS = 0.3  # for the error to reach the clients after that
BYTES_MAX = 4096
CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group

logger = logging.getLogger("vllm.stoker")


def is_vllms_own_program():
    """Whether this process was started as `vllm` or as a module of vLLM's, and not as a script that uses it."""
    program = sys.modules["__main__"]
    names = (getattr(program.__spec__, "name", None), getattr(getattr(program, "main", None), "__module__", None))
    return any(name is not None and name.startswith("vllm.") for name in names)


def listen():
    """Before other processes are started: a thread waits for a report."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    name = f"stoker-vllm-{secrets.token_hex(8)}"
    listener.bind("\0" + name)
    os.environ[VARIABLE] = name
    threading.Thread(target=_wait, args=(listener,), name="stoker-server-exit", daemon=True).start()


def tell(report):
    """In a worker that stops. Neither waits nor raises: who listens may be gone."""
    name = os.environ.get(VARIABLE)
    if name:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(report.encode()[:BYTES_MAX], socket.MSG_DONTWAIT, "\0" + name)


def _wait(listener):
    while True:
        report, credentials, _, _ = listener.recvmsg(BYTES_MAX, socket.CMSG_SPACE(CREDENTIALS.size))
        users = [CREDENTIALS.unpack(data)[1] for _, kind, data in credentials if kind == socket.SCM_CREDENTIALS]
        if users == [os.geteuid()]:
            break
    _end(report.decode(errors="replace"))


def _end(report):
    logger.error("%s; this server ends with status %d", report, EXIT_STATUS)
    engines = multiprocessing.active_children()
    limit = time.monotonic() + ENGINES_SECONDS
    while any(engine.is_alive() for engine in engines) and time.monotonic() < limit:
        time.sleep(0.05)
    for engine in engines:
        logger.error("%s (process %d) %s", engine.name, engine.pid,
                     "does not end and is killed" if engine.is_alive() else f"ended with status {engine.exitcode}")
        if engine.is_alive():
            engine.kill()
    time.sleep(STREAMS_SECONDS)
    os._exit(EXIT_STATUS)
