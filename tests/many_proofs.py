"""``python -m tests.many_proofs RUNS cheap|full``: prove the first visible GPU in this process, many times.

Prints each verdict other than a pass as a JSON line, and then the number of passes. Each run has its own patterns.
"""

import json
import sys

from kubemend.agent.model.devices import GpuUuid
from kubemend.agent.prove import judging, measurements, measuring
from kubemend.agent.prove.cuda import Cuda, CudaError
from kubemend.agent.prove.measurements import CudaFailure, Facts, Message
from kubemend.agent.prove.report import Outcome, Verdict
from kubemend.agent.sources.nvml.calls import Calls

_CHEAP = {"copy_size": 4096, "least_memory": 65536, "depth": 16, "rounds": 3, "samples": 2}


def once(cuda: Cuda, plan: measuring.Plan) -> Verdict:
    """Prove once."""
    messages: list[Message] = []
    try:
        measuring.one_gpu(cuda, messages.append, plan=plan)
    except CudaError as error:
        messages.append(CudaFailure(call=error.call, code=error.code, name=error.name, test=cuda.test))
    uuid = next((each.uuid for each in messages if isinstance(each, Facts)), "")
    return judging.judge(GpuUuid(uuid), measurements.gathered(messages))


def main(runs: int, how: str) -> None:
    """Prove ``runs`` times."""
    cuda = Cuda(Calls(deadline=60.0, announce=lambda _: None, came_back=lambda: None))
    passed = 0
    for number in range(runs):
        sizes = _CHEAP if how == "cheap" else {}
        verdict = once(cuda, measuring.Plan(**sizes, seed=number * 0x1234567))
        passed += verdict.outcome is Outcome.PASSED
        if verdict.outcome is not Outcome.PASSED:
            print(json.dumps([number, verdict.outcome.value, verdict.message]))  # noqa: T201 - the output
    print(passed)  # noqa: T201 - the output


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
