"""Flow processes that are killed: a program beside the tests, which forks a process for each flow run.

``python flow_actor.py`` reads one JSON object a line, ``{"spec": …, "runs": [moment or null, …]}``, starts a run of the
release flow for each entry, all at once, and answers with their exit statuses. A run with a moment (see `outcomes`) is
killed with SIGKILL there. Importing takes seconds, so it is done once; no thread is started before the forks.
"""

import gc
import json
import os
import signal
import sys
import traceback
from typing import Any

from flowruns import at_moments_of_flows

import flows.release


def run(spec: dict[str, Any], moment: str | None) -> None:
    """One flow run, in a process of its own."""
    status = 1

    def act(met: str) -> None:
        if met == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with at_moments_of_flows(act):
            flows.release.release(spec)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    """Answer until the input ends."""
    gc.collect()
    gc.freeze()  # no run looks for cycles in what was imported
    for line in sys.stdin:
        asked = json.loads(line)
        children = []
        for moment in asked["runs"]:
            child = os.fork()
            if child == 0:
                run(asked["spec"], moment)
            children.append(child)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


if __name__ == "__main__":
    main()
