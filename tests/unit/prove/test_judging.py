"""Verdicts on measurements: failures only by evidence, passes only by complete proofs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.devices import DeviceId, DevicePartition, Gpu, PciAddress
from kubemend.agent.prove import judging, measurements
from kubemend.agent.prove.measurements import (
    OF_ONE_GPU,
    CudaFailure,
    Facts,
    Finished,
    Hanging,
    Measured,
    Message,
    NoAccess,
    NoLibrary,
    Step,
    Test,
)
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict
from kubemend.agent.sources.nvml.protocol import Condition, DeviceAnswer, ProcessUse

UUID = DeviceId("GPU-1")
FACTS = Facts(uuid=UUID, multiprocessors=132, nominal_rate=3.35e12, memory_free=80 << 30, needed=1 << 20)
MOVED = 140 << 30


def step(test: Test) -> Step:
    return Step(test=test, planned=100, compared=100, wrong=0, moved=MOVED, seconds=MOVED / 2.5e12)


GOOD = Measured(facts=FACTS, steps=tuple(step(test) for test in OF_ONE_GPU), finished=True)


def with_step(changed: Step) -> Measured:
    return replace(GOOD, steps=tuple(changed if each.test is changed.test else each for each in GOOD.steps))


def short(verdict: Verdict) -> tuple[Outcome, Reason | None]:
    return verdict.outcome, verdict.reason


def test_complete_proof_without_a_difference_passes_and_shows_rates() -> None:
    verdict = judging.judge(UUID, GOOD)

    assert short(verdict) == (Outcome.PASSED, None)
    assert verdict.evidence["tests"]["memory"]["gigabytes_per_second"] == 2500


@pytest.mark.parametrize("is_fast_first", [True, False])
def test_pass_shows_the_time_of_each_test_and_the_best_rate(is_fast_first: bool) -> None:
    fast, slow = step(Test.MEMORY), replace(step(Test.MEMORY), seconds=MOVED / 1e12)
    others = tuple(replace(each, moved=0) for each in GOOD.steps if each.test is not Test.MEMORY)
    passes = (fast, slow) if is_fast_first else (slow, fast)

    tests = judging.judge(UUID, replace(GOOD, steps=(*others, *passes))).evidence["tests"]

    seconds = pytest.approx(fast.seconds + slow.seconds, abs=1e-5)
    assert tests["memory"] == {"seconds": seconds, "bytes": MOVED, "gigabytes_per_second": 2500}
    assert tests[Test.FLOAT_PRODUCT.value] == {"seconds": pytest.approx(fast.seconds, abs=1e-5)}


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (Test.INTEGER_PRODUCT, Reason.WRONG_RESULT),
        (Test.FLOAT_PRODUCT, Reason.WRONG_RESULT),
        (Test.TENSOR_PRODUCT, Reason.WRONG_RESULT),
        (Test.MEMORY, Reason.WRONG_MEMORY),
        (Test.HOST_TO_DEVICE, Reason.WRONG_COPY),
        (Test.DEVICE_TO_HOST, Reason.WRONG_COPY),
    ],
)
def test_one_wrong_value_fails_with_its_place(test: Test, reason: Reason) -> None:
    verdict = judging.judge(UUID, with_step(replace(step(test), wrong=1, offset=0x40, expected=3, got=7)))

    assert short(verdict) == (Outcome.FAILED, reason)
    assert verdict.evidence == {
        "test": test.value,
        "detail": "",
        "planned": 100,
        "compared": 100,
        "wrong": 1,
        "offset": 0x40,
        "expected": "0x3",
        "got": "0x7",
        "seconds": step(test).seconds,
    }


@pytest.mark.parametrize("test", OF_ONE_GPU)
def test_kernel_that_compared_too_little_never_passes(test: Test) -> None:
    assert judging.judge(UUID, with_step(replace(step(test), compared=0))).outcome is Outcome.FAILED


@pytest.mark.parametrize("test", OF_ONE_GPU)
def test_empty_or_missing_test_is_incomplete(test: Test) -> None:
    empty = with_step(replace(step(test), planned=0, compared=0))
    without = replace(GOOD, steps=tuple(each for each in GOOD.steps if each.test is not test))

    assert short(judging.judge(UUID, empty)) == (Outcome.UNKNOWN, Reason.INCOMPLETE)
    assert short(judging.judge(UUID, without)) == (Outcome.UNKNOWN, Reason.INCOMPLETE)


def test_worker_that_dies_at_the_end_does_not_pass() -> None:
    verdict = judging.judge(UUID, replace(GOOD, finished=False, ended="its process ended by signal 11"))

    assert short(verdict) == (Outcome.UNKNOWN, Reason.INCOMPLETE)
    assert "signal 11" in verdict.message


@pytest.mark.parametrize(
    ("share", "alone", "expected"),
    [
        (0.009, True, (Outcome.FAILED, Reason.SLOW_MEMORY)),
        (0.009, False, (Outcome.UNKNOWN, Reason.SLOW_MEMORY)),
        (0.5 * 405 / 14001, True, (Outcome.PASSED, None)),  # half of what the lowest memory clock allows
    ],
)
def test_slow_memory_fails_only_an_undisturbed_gpu(
    share: float, alone: bool, expected: tuple[Outcome, Reason | None]
) -> None:
    slow = replace(step(Test.MEMORY), seconds=MOVED / (share * FACTS.nominal_rate))

    assert short(judging.judge(UUID, with_step(slow), alone=alone)) == expected


def test_speed_is_not_judged_without_a_nominal_one_or_on_little_memory() -> None:
    slow = with_step(replace(step(Test.MEMORY), seconds=1e6))
    little = with_step(replace(step(Test.MEMORY), moved=1 << 20, seconds=1.0))

    assert judging.judge(UUID, replace(slow, facts=replace(FACTS, nominal_rate=0.0))).outcome is Outcome.PASSED
    assert judging.judge(UUID, little).outcome is Outcome.PASSED
    untimed = tuple(replace(each, seconds=0.0) for each in GOOD.steps)
    assert judging.judge(UUID, replace(GOOD, steps=untimed)).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Measured(no_library="no such file"), (Outcome.SKIPPED, Reason.NO_CUDA)),
        (Measured(facts=replace(FACTS, uuid="GPU-2")), (Outcome.UNKNOWN, Reason.NOT_VISIBLE)),
        (Measured(facts=replace(FACTS, compute_mode=2)), (Outcome.SKIPPED, Reason.COMPUTE_MODE)),
        (Measured(facts=replace(FACTS, compute_mode=3)), (Outcome.SKIPPED, Reason.COMPUTE_MODE)),
        (Measured(facts=replace(FACTS, memory_free=1)), (Outcome.SKIPPED, Reason.TOO_LITTLE_MEMORY)),
        (Measured(hanging=Hanging("cuInit", 15.0)), (Outcome.UNKNOWN, Reason.DID_NOT_ANSWER)),
        (
            Measured(facts=FACTS, hanging=Hanging("cuEventSynchronize", 15.0, Test.MEMORY)),
            (Outcome.FAILED, Reason.DID_NOT_ANSWER),
        ),
        (
            Measured(facts=FACTS, hanging=Hanging("cuDevicePrimaryCtxRetain", 9.0)),
            (Outcome.UNKNOWN, Reason.DID_NOT_ANSWER),
        ),
        (Measured(), (Outcome.UNKNOWN, Reason.INCOMPLETE)),
    ],
)
def test_what_stops_a_proof(measured: Measured, expected: tuple[Outcome, Reason]) -> None:
    assert short(judging.judge(UUID, measured)) == expected


@pytest.mark.parametrize(
    ("code", "test", "expected"),
    [
        (719, Test.MEMORY, (Outcome.FAILED, Reason.CUDA_ERROR)),
        (214, Test.FLOAT_PRODUCT, (Outcome.FAILED, Reason.CUDA_ERROR)),
        (999, None, (Outcome.UNKNOWN, Reason.CUDA_ERROR)),  # of cuInit: the driver is not set up
        (222, None, (Outcome.UNKNOWN, Reason.CUDA_ERROR)),  # the driver does not know our PTX
        (802, None, (Outcome.UNKNOWN, Reason.CUDA_ERROR)),  # the fabric manager is not ready
        (1, Test.MEMORY, (Outcome.UNKNOWN, Reason.CUDA_ERROR)),  # an error of our own
        (2, Test.MEMORY, (Outcome.SKIPPED, Reason.TOO_LITTLE_MEMORY)),
        (46, None, (Outcome.SKIPPED, Reason.IN_USE)),
        (100, None, (Outcome.UNKNOWN, Reason.NOT_VISIBLE)),
    ],
)
def test_cuda_error_fails_a_gpu_only_where_its_hardware_is_the_cause(
    code: int, test: Test | None, expected: tuple[Outcome, Reason]
) -> None:
    failure = CudaFailure(call="cuX", code=code, name="CUDA_ERROR_X", test=test)

    verdict = judging.judge(UUID, Measured(facts=FACTS, failure=failure))

    assert short(verdict) == expected
    assert verdict.evidence == {"call": "cuX", "code": code, "name": "CUDA_ERROR_X"}


def test_difference_on_another_device_accuses_none() -> None:
    wrong = with_step(replace(step(Test.MEMORY), wrong=1, offset=0, expected=3, got=7))

    verdict = judging.judge(UUID, replace(wrong, facts=replace(FACTS, uuid="GPU-2")))

    assert short(verdict) == (Outcome.UNKNOWN, Reason.NOT_VISIBLE)


def test_difference_counts_although_the_worker_failed_later() -> None:
    measured = Measured(
        facts=FACTS,
        steps=(replace(step(Test.MEMORY), wrong=1, offset=0),),
        failure=CudaFailure("cuMemFree_v2", 1, "CUDA_ERROR_INVALID_VALUE", Test.MEMORY),
    )

    assert short(judging.judge(UUID, measured)) == (Outcome.FAILED, Reason.WRONG_MEMORY)


GPU = Gpu(uuid=UUID, pci=PciAddress(0, 1, 0), index=0)
IDLE = DeviceAnswer(uuid=UUID, condition=Condition.ANSWERS, processes=())


@pytest.mark.parametrize(
    ("gpu", "answer", "mps", "expected"),
    [
        (GPU, None, False, (Outcome.UNKNOWN, Reason.NVML_UNCLEAR)),
        (GPU, replace(IDLE, condition=Condition.LOST), False, (Outcome.UNKNOWN, Reason.NVML_UNCLEAR)),
        (GPU, replace(IDLE, processes=None), False, (Outcome.UNKNOWN, Reason.NVML_UNCLEAR)),
        (GPU, replace(IDLE, processes=(ProcessUse(7, None),)), False, (Outcome.SKIPPED, Reason.IN_USE)),
        (GPU, IDLE, True, (Outcome.SKIPPED, Reason.MPS)),
        (
            replace(GPU, partitions=(DevicePartition(DeviceId("MIG-1"), 1, 0),)),
            IDLE,
            False,
            (Outcome.SKIPPED, Reason.MIG),
        ),
    ],
)
def test_gpu_that_is_not_known_to_be_idle_is_not_used(
    gpu: Gpu, answer: DeviceAnswer | None, mps: bool, expected: tuple[Outcome, Reason]
) -> None:
    verdict = judging.obstacle(gpu, answer, mps=mps)

    assert verdict is not None
    assert short(verdict) == expected


@pytest.mark.parametrize(("number", "shown"), [(4, "1, 2, 3, 4"), (5, "1, 2, 3, 4, …")])
def test_first_processes_on_a_gpu_are_named(number: int, shown: str) -> None:
    processes = tuple(ProcessUse(pid, None) for pid in range(number, 0, -1))
    verdict = judging.obstacle(GPU, replace(IDLE, processes=processes), mps=False)
    assert verdict is not None
    assert (verdict.message, verdict.evidence) == (f"processes use it: {shown}", {"pids": [*range(1, number + 1)]})


def test_gpu_is_not_used_where_processes_of_others_may_be_hidden() -> None:
    """The driver lists those of the caller's PID namespace: in a container without the host's, every GPU looks idle."""
    verdict = judging.obstacle(GPU, IDLE, mps=False, lists_all=False)

    assert verdict is not None
    assert short(verdict) == (Outcome.UNKNOWN, Reason.NVML_UNCLEAR)
    assert "--pid=host" in verdict.message


def test_idle_gpu_may_be_used() -> None:
    assert judging.obstacle(GPU, IDLE, mps=False) is None


def test_copies_between_gpus_are_judged_by_pair() -> None:
    good, bad = (replace(step(Test.PEER), pair=pair) for pair in (("a", "b"), ("b", "a")))
    measured = Measured(
        steps=(good, replace(bad, wrong=2, offset=8)),
        no_access=(NoAccess(("b", "c")),),
        hanging=Hanging("cuMemcpyPeer", 15.0, Test.PEER, ("a", "c")),
    )

    found = {pair: short(verdict) for pair, verdict in judging.pairs(measured)}

    assert found == {
        ("a", "b"): (Outcome.PASSED, None),
        ("b", "a"): (Outcome.FAILED, Reason.WRONG_COPY),
        ("b", "c"): (Outcome.SKIPPED, Reason.NO_PEER_ACCESS),
        ("a", "c"): (Outcome.FAILED, Reason.DID_NOT_ANSWER),
    }
    assert "cuMemcpyPeer" in judging.unfinished_pairs(measured)


@pytest.mark.parametrize(
    ("measured", "expected", "problem"),
    [
        (Measured(finished=True), {}, ""),
        (
            Measured(steps=(Step(Test.PEER, planned=0, compared=0, wrong=0, pair=("a", "b")),), finished=True),
            {("a", "b"): (Outcome.UNKNOWN, Reason.INCOMPLETE)},
            "",
        ),
        (
            Measured(failure=CudaFailure("cuCtxSynchronize", 220, "CUDA_ERROR_X", Test.PEER, ("a", "b"))),
            {("a", "b"): (Outcome.FAILED, Reason.CUDA_ERROR)},
            "cuCtxSynchronize: CUDA_ERROR_X (220) in peer",
        ),
        (Measured(failure=CudaFailure("cuInit", 100, "CUDA_ERROR_NO_DEVICE")), {}, "cuInit"),
        (Measured(hanging=Hanging("cuInit", 15.0)), {}, "cuInit"),
        (Measured(no_library="no such file"), {}, "no such file"),
        (Measured(ended="its process ended by signal 11"), {}, "signal 11"),
        (Measured(), {}, "its process ended early"),
    ],
)
def test_pairs_without_a_complete_result_do_not_pass(
    measured: Measured, expected: dict[tuple[str, str], tuple[Outcome, Reason | None]], problem: str
) -> None:
    assert {pair: short(verdict) for pair, verdict in judging.pairs(measured)} == expected
    assert problem in judging.unfinished_pairs(measured)
    assert bool(judging.unfinished_pairs(measured)) is not measured.finished


def test_every_message_of_a_worker_counts() -> None:
    failure, hanging = CudaFailure("cuX", 719, "CUDA_ERROR_X"), Hanging("cuX", 15.0)
    messages = (FACTS, step(Test.MEMORY), NoAccess(("a", "b")), failure, hanging, NoLibrary("none"), Finished())
    assert measurements.gathered(messages) == Measured(
        facts=FACTS,
        steps=(step(Test.MEMORY),),
        no_access=(NoAccess(("a", "b")),),
        failure=failure,
        hanging=hanging,
        no_library="none",
        finished=True,
    )


TESTS = st.sampled_from(Test)
COUNTS = st.integers(0, 5)
STEPS = st.builds(
    Step,
    test=TESTS,
    planned=COUNTS,
    compared=COUNTS,
    wrong=st.integers(0, 1),
    moved=st.integers(0, 1 << 40),
    seconds=st.floats(0, 1e3),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    STEPS,
    st.sampled_from([step(test) for test in OF_ONE_GPU]),
    st.builds(Facts, uuid=st.sampled_from(["GPU-1", "GPU-2"]), compute_mode=st.integers(0, 3)),
    st.builds(CudaFailure, call=st.just("cuX"), code=st.integers(1, 1000), name=st.text(), test=st.none() | TESTS),
    st.builds(Hanging, call=st.sampled_from(["cuInit", "cuX"]), seconds=st.just(1.0), test=st.none() | TESTS),
    st.builds(NoLibrary, error=st.text()),
    st.just(Finished()),
)


@given(messages=st.lists(MESSAGES, max_size=12), alone=st.booleans())
def test_no_pass_without_all_results_and_no_failure_without_evidence(messages: list[Message], alone: bool) -> None:
    messages = [measurements.decode(measurements.encode(message)) for message in messages]
    steps = [each for each in messages if isinstance(each, Step)]

    verdict = judging.judge(UUID, measurements.gathered(messages), alone=alone)

    if verdict.outcome is Outcome.PASSED:
        assert Finished() in messages
        assert {each.test for each in steps if each.planned} >= set(OF_ONE_GPU)
        assert all(not each.wrong and each.compared == each.planned for each in steps)
        assert not any(isinstance(each, CudaFailure | Hanging | NoLibrary) for each in messages)
    else:
        assert verdict.reason is not None
        assert verdict.message
    if verdict.outcome is Outcome.FAILED:
        assert verdict.evidence


@given(message=MESSAGES)
def test_message_survives_its_way(message: Message) -> None:
    assert measurements.decode(measurements.encode(message)) == message


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"type":"Step"}', b'{"type":"Other"}'])
def test_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(measurements.MessageError):
        measurements.decode(line)
