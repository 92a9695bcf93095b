"""A trainer that is held after a step, so that a test need not be in time: `held.py GATE MODULE ARGUMENT...`.

GATE is a file with the number of the step. It goes on once that is removed, or it is asked to stop.
"""

import importlib
import sys
import time
from contextlib import suppress
from pathlib import Path

from strata.training.program.client import Attempt


def is_held(gate, step):
    with suppress(FileNotFoundError, ValueError):
        return step >= int(gate.read_text())
    return False


def main(gate, module, *arguments):
    report = Attempt.report

    def report_and_wait(attempt, step, **more):
        report(attempt, step, **more)
        while not attempt.is_stopping and is_held(gate, step):
            time.sleep(0.01)

    Attempt.report = report_and_wait
    sys.argv = [module, *arguments]
    return importlib.import_module(module).main()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
