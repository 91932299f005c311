"""Run a command that ends with the process that started it. A program, not a module.

    python -I -S supervisor.py PARENT GRACE COMMAND...

The command gets a separate process group. The group is ended when the process PARENT ends for any
reason, or when this process receives SIGINT, SIGTERM or SIGHUP: first by SIGTERM, GRACE seconds
later by SIGKILL. The exit status is the command's, or 128 plus the number of the signal that ended
it.
"""

import contextlib
import os
import signal
import sys
import time

CHECK_S = 0.5  # between two checks of the parent
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def main() -> int:
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    # Signals are blocked until sigtimedwait takes them, so that none is lost.
    awaited = ENDING | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigmask=())
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    terminated = None  # time of the group's SIGTERM
    while True:
        arrived = signal.sigtimedwait(awaited, CHECK_S)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            send(child, signal.SIGKILL)  # to processes it left running
            return code if (code := os.waitstatus_to_exitcode(status)) >= 0 else 128 - code
        orphaned = os.getppid() != parent
        if terminated is None and (orphaned or (arrived and arrived.si_signo in ENDING)):
            send(child, signal.SIGTERM)
            terminated = time.monotonic()
        elif terminated is not None and time.monotonic() > terminated + grace:
            send(child, signal.SIGKILL)


def send(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
