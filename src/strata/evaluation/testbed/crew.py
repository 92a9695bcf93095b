"""The worker processes of a testbed, one a domain: started together, told together, stopped together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from typing import Any, Final, Self

from strata.errors import OutOfTime, StrataError
from strata.evaluation.testbed.namespaces import Namespaces, address

_PORT: Final = 29500  # nothing else runs in our namespaces


class Crew:
    """Workers in the namespaces of a network; `deadline_s` of work from now, then they are killed."""

    def __init__(self, network: Namespaces, *, deadline_s: float) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        self._workers: list[subprocess.Popen[str]] = []
        self._is_late = False
        self._timer = threading.Timer(deadline_s, self._too_late)
        self._timer.daemon = True
        count = len(network.names)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._timer.start()
        for rank in range(count):
            arguments = [str(rank), str(count), address(0), str(_PORT), network.interface(rank)]
            command = [sys.executable, "-m", "strata.evaluation.testbed.worker", *arguments]
            worker = subprocess.Popen(
                network.command(rank, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, text=True, env=environment,
            )  # fmt: skip
            self._workers.append(worker)

    def __enter__(self) -> Self:
        self._answers()  # every worker says once that it has found the others
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        for worker in self._workers:
            worker.kill()
            worker.communicate()
        self._errors.close()

    def ask(self, do: str, **task: Any) -> list[dict[str, Any]]:
        """Give all workers a task of `worker.TASKS`; return their answers by rank."""
        line = json.dumps({"do": do, **task}) + "\n"
        for worker in self._workers:
            assert worker.stdin is not None
            try:
                worker.stdin.write(line)
                worker.stdin.flush()
            except BrokenPipeError:
                break  # _answers() says what became of it
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        replies = []
        for worker in self._workers:
            assert worker.stdout is not None
            line = worker.stdout.readline()
            if not line:
                raise self._trouble()
            replies.append(json.loads(line))
        return replies

    def _trouble(self) -> StrataError:
        if self._is_late:
            return OutOfTime("the time limit passed before all steps were measured", hint="a larger --time-limit")
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return StrataError(f"a worker of the testbed died: {lines[-1] if lines else 'it said nothing'}")

    def _too_late(self) -> None:
        self._is_late = True
        for worker in self._workers:
            worker.kill()
