"""A program whose output is shown as it comes, and that does not run for ever."""

import os
import signal
import subprocess
import threading


def stream(command, minutes, **options) -> tuple[int, str]:
    """(exit status, last line that is not empty). TimeoutError: it ran longer; it and what it started are gone."""
    process = subprocess.Popen(command, text=True, errors="replace", start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    late = threading.Event()

    def end():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(minutes * 60, end)
    timer.start()
    last = "no output"
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip(" =\n") or last
        status = process.wait(60)
    finally:
        timer.cancel()
        if process.poll() is None:  # an exception here
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    if late.is_set():
        raise TimeoutError(f"ended after {minutes:g} min; its last line: {last}")
    return status, last
