"""Run a command that ends with the process that started it: a program of its own, no module.

    python -I -S supervisor.py PARENT GRACE COMMAND...

The command gets a process group of its own. The whole group is ended when the process PARENT has
ended, in whatever way, and when this one is interrupted, terminated or hung up: by SIGTERM and,
GRACE seconds later, by SIGKILL. The status is the command's, or 128 and the signal it ended by.
"""

import contextlib
import os
import signal
import sys
import time

CHECK_S = 0.5  # between two looks at the parent
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def main() -> int:
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    # Signals wait until they are asked for, so that none gets lost.
    awaited = ENDING | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigmask=())
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    asked = None  # when the group was asked to end
    while True:
        arrived = signal.sigtimedwait(awaited, CHECK_S)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            send(child, signal.SIGKILL)  # to whatever it left running
            return code if (code := os.waitstatus_to_exitcode(status)) >= 0 else 128 - code
        orphaned = os.getppid() != parent
        if asked is None and (orphaned or (arrived and arrived.si_signo in ENDING)):
            send(child, signal.SIGTERM)
            asked = time.monotonic()
        elif asked is not None and time.monotonic() > asked + grace:
            send(child, signal.SIGKILL)


def send(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
