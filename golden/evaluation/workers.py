"""Tasks in processes of their own, none of which outlives the one that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from golden.lm import InputError


def run_all(
    do: Callable,
    tasks: Sequence,
    jobs: int,
    start: Callable,
    arguments: tuple,
    tick: Callable[[], object] = lambda: None,
) -> dict:
    """Results of ``do(task)`` by task, from `jobs` processes that each call ``start(*arguments)``.

    ``tick`` is called after each task. Whatever ends this, an interrupt or an error, ends the
    processes as well. Raises ``InputError`` when one of them is killed.
    """
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(start, arguments),
    )
    done = {}
    try:
        # A terminal sends Ctrl-C to every process. Workers inherit that it is blocked: one that
        # died of it while it held a lock of the pool would leave the others waiting for ever.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = {pool.submit(do, task): task for task in tasks}
            # A pool watches for the death of those processes that it had before its latest task.
            pool.submit(int)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            tick()
    except BrokenProcessPool:
        reason = "a worker process was killed, perhaps for lack of memory"
        raise InputError(f"{reason}: give fewer --jobs") from None
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return done


def _begin(start: Callable, arguments: tuple) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start(*arguments)


def _end_with_parent() -> None:
    """A process that was killed cannot end its workers: they notice by themselves."""
    multiprocessing.parent_process().join()
    os._exit(1)
