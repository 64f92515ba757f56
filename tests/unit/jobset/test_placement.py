"""Assigning domains to Jobs: never one domain to two Jobs, stable, and never without room."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import choosing, exclusive
from kubemend.controller.jobset.placement.model import Domain, Needs, Node, Placements, Pod, Reason, Seeker, Taint
from kubemend.controller.jobset.spec.model import ChildJob

GPUS = "nvidia.com/gpu"
NEEDS = Needs(requests=((GPUS, Fraction(8)),))


def node(name: str, rack: str | None = None, *, gpus: int = 8, **fields: Any) -> Node:
    """Return a node of a rack, with room for one pod."""
    labels = {} if rack is None else {"rack": rack}
    return Node(**{"name": name, "labels": labels, "allocatable": {GPUS: Fraction(gpus)}, **fields})


def rack(name: str, nodes: int) -> list[Node]:
    """Return a rack of this many nodes."""
    return [node(f"{name}-{index}", name) for index in range(nodes)]


def gated(job: str, index: int = 0, **fields: Any) -> Pod:
    """Return a pod that waits for its domain."""
    name = f"{job}-{index}"
    values = {"topology": "rack", "gates": (exclusive.GATE,), "needs": NEEDS, **fields}
    return Pod(**{"namespace": "ml", "name": name, "uid": f"uid-{name}", "job": job, **values})


def released(job: str, domain: str, index: int = 0, **fields: Any) -> Pod:
    """Return a pod that was released to its domain."""
    needs = replace(NEEDS, selector=(("rack", domain),))
    return gated(job, index, **{"gates": (), "needs": needs, **fields})


def seeker(job: str, pods: int = 1) -> Seeker:
    """Return a Job of this many pods."""
    return Seeker(job, f"ml/{job}", pods)


def place(
    seekers: Sequence[Seeker],
    pods: Sequence[Pod],
    nodes: Sequence[Node],
    promised: Mapping[str, Domain] | None = None,
) -> Placements:
    return choosing.place(seekers, pods=pods, nodes=nodes, promised=promised or {})


def domains(found: Placements) -> dict[str, str]:
    """Return the assigned racks by Job."""
    return {each.job: each.domain.value for each in found.assigned}


def reasons(found: Placements) -> dict[str, Reason]:
    """Return the reasons of the waiting Jobs."""
    return {each.job: each.reason for each in found.waiting}


def test_job_gets_a_domain_for_all_waiting_pods() -> None:
    found = place([seeker("a", 2)], [gated("a", 1), gated("a", 0)], rack("r1", 2))
    (one,) = found.assigned
    assert (one.domain, [pod.name for pod in one.pods]) == (Domain("rack", "r1"), ["a-0", "a-1"])
    assert found.waiting == ()


def test_jobs_get_domains_in_order_of_seekers() -> None:
    found = place(
        [seeker("b"), seeker("a"), seeker("c")], [gated(job) for job in "abc"], [*rack("r1", 1), *rack("r2", 1)]
    )
    assert domains(found) == {"b": "r1", "a": "r2"}
    assert reasons(found) == {"c": Reason.ALL_HELD}


def test_job_gets_smallest_domain_with_room() -> None:
    nodes = [*rack("r1", 4), *rack("r2", 1), *rack("r3", 2), *rack("r4", 3)]
    assert domains(place([seeker("a", 2)], [gated("a")], nodes)) == {"a": "r3"}


def test_room_must_suffice_for_pods_not_created_yet() -> None:
    found = place([seeker("a", 3)], [gated("a")], [*rack("r1", 2), *rack("r2", 2)])
    assert reasons(found) == {"a": Reason.NO_ROOM}
    assert "none of the 2 domains of rack has enough room on ready nodes for its 3 pods" in found.waiting[0].message


def test_several_pods_may_share_a_node() -> None:
    assert domains(place([seeker("a", 2)], [gated("a")], [node("n", "r1", gpus=16)])) == {"a": "r1"}


@pytest.mark.parametrize(
    "fields", [{"usable": False}, {"taints": (Taint("kubemend.io/device-failure", "", "NoSchedule"),)}, {"gpus": 7}]
)
def test_unsuitable_nodes_are_no_room(fields: dict[str, Any]) -> None:
    assert reasons(place([seeker("a")], [gated("a")], [node("n", "r1", **fields)])) == {"a": Reason.NO_ROOM}


def test_missing_labelled_nodes_give_a_hint() -> None:
    found = place([seeker("a")], [gated("a")], [node("n")])
    assert reasons(found) == {"a": Reason.NO_DOMAIN}
    assert found.waiting[0].message == "Job ml/a: no node has label rack. Label the nodes by their domains"


def test_job_stays_in_domain_of_its_pods_without_room() -> None:
    nodes = [node("r1-0", "r1", usable=False), *rack("r2", 1)]
    pods = [released("a", "r1", 1, node="r1-0"), gated("a")]
    assert domains(place([seeker("a", 2)], pods, nodes)) == {"a": "r1"}


def test_job_stays_in_selected_domain_without_nodes() -> None:
    assert domains(place([seeker("a", 2)], [released("a", "r1", 1), gated("a")], rack("r2", 2))) == {"a": "r1"}


def test_job_stays_in_selected_domain_though_its_pods_node_has_lost_the_label() -> None:
    pods = [released("a", "r1", node="n"), gated("a", 1)]
    assert domains(place([seeker("a", 2)], pods, [node("n"), *rack("r2", 2)])) == {"a": "r1"}


def test_domain_of_one_topology_is_not_given_to_pods_of_another() -> None:
    in_zone = gated("a", 2, topology="zone", gates=(), needs=replace(NEEDS, selector=(("zone", "z1"),)))
    found = place([seeker("a")], [gated("a", 0), gated("a", 1, topology="zone"), in_zone], rack("r1", 1))
    assert [(each.domain, [pod.name for pod in each.pods]) for each in found.assigned] == [
        (Domain("rack", "r1"), ["a-0"])
    ]


def test_job_stays_in_domain_of_ending_pod() -> None:
    pods = [released("a", "r2", 1, node="r2-0"), gated("a")]
    assert domains(place([seeker("a")], pods, [*rack("r1", 1), *rack("r2", 1)])) == {"a": "r2"}


def test_job_leaves_domain_of_ending_pods_that_does_not_suit_its_new_pods() -> None:
    """Kueue has evicted it, and admitted it to other nodes before its pods were gone."""
    nodes = [node("r1-0", "r1"), replace(node("r2-0"), labels={"rack": "r2", "pool": "b"})]
    elsewhere = gated("a", 0, needs=replace(NEEDS, selector=(("pool", "b"),)))
    ending = released("a", "r1", 1, node="r1-0", deleting=True)
    assert domains(place([seeker("a", 1)], [ending, elsewhere], nodes)) == {"a": "r2"}
    assert domains(place([seeker("a", 1)], [replace(ending, deleting=False), elsewhere], nodes)) == {"a": "r1"}
    others = place([seeker("b", 1)], [ending, gated("b")], nodes[:1])
    assert reasons(others) == {"b": Reason.ALL_HELD}


def test_job_stays_in_domain_of_ending_pods_that_suits_its_new_pods() -> None:
    nodes = [node("r1-0", "r1", usable=False), *rack("r2", 2)]
    ending = released("a", "r1", 1, node="r1-0", deleting=True)
    assert domains(place([seeker("a", 2)], [ending, gated("a")], nodes)) == {"a": "r1"}


def test_job_stays_in_promised_domain() -> None:
    nodes = [*rack("r1", 1), *rack("r2", 1)]
    assert domains(place([seeker("a")], [gated("a")], nodes, {"a": Domain("rack", "r2")})) == {"a": "r2"}


def test_promised_domain_is_occupied() -> None:
    found = place([seeker("a")], [gated("a")], rack("r1", 1), {"b": Domain("rack", "r1")})
    assert reasons(found) == {"a": Reason.ALL_HELD}


def test_job_with_finished_pods_occupies_nothing() -> None:
    pods = [released("b", "r1", node="r1-0", over=True), gated("a")]
    assert domains(place([seeker("a")], pods, rack("r1", 1))) == {"a": "r1"}


@pytest.mark.parametrize(
    "other",
    [
        released("b", "r1"),
        released("b", "r1", node="r1-0"),
        Pod("other", "b-0", "uid", "b", node="r1-1"),
        Pod("other", "b-0", "uid", "b", topology="host", node="r1-1"),
    ],
    ids=["sent there", "there", "there without a domain for itself", "there by another topology"],
)
def test_domain_with_foreign_pod_is_not_assigned(other: Pod) -> None:
    nodes = [replace(each, labels={**each.labels, "host": each.name}) for each in rack("r1", 2)]
    assert reasons(place([seeker("a")], [other, gated("a")], nodes)) == {"a": Reason.ALL_HELD}


def test_domain_inside_foreign_larger_one_is_not_assigned() -> None:
    nodes = [replace(each, labels={**each.labels, "zone": "z"}) for each in [*rack("r1", 1), *rack("r2", 1)]]
    other = Pod("ml", "b-0", "uid", "b", topology="zone", node="r1-0")
    assert reasons(place([seeker("a")], [other, gated("a")], nodes)) == {"a": Reason.ALL_HELD}


def test_pods_of_other_controllers_keep_waiting() -> None:
    assert place([], [gated("a")], rack("r1", 1)) == Placements()


def test_job_without_waiting_pods_gets_nothing() -> None:
    assert place([seeker("a")], [released("a", "r1")], rack("r1", 1)) == Placements()


def test_own_selector_limits_the_choice() -> None:
    nodes = [*rack("r1", 1), *rack("r2", 1)]
    wish = gated("a", needs=replace(NEEDS, selector=(("rack", "r2"),)))
    assert domains(place([seeker("a"), seeker("b")], [wish, gated("b")], nodes)) == {"a": "r2", "b": "r1"}


def test_jobs_with_different_needs_get_different_domains() -> None:
    pods = [gated("a"), gated("b", needs=Needs(requests=((GPUS, Fraction(1)),)))]
    found = place([seeker("a"), seeker("b")], pods, rack("r1", 1))
    assert domains(found) == {"a": "r1"}
    assert reasons(found) == {"b": Reason.ALL_HELD}


def test_jobs_competing_for_a_domain_do_not_share_it() -> None:
    wish = replace(NEEDS, selector=(("rack", "r2"),))
    found = place(
        [seeker("a"), seeker("b")], [gated(job, needs=wish) for job in "ab"], [*rack("r1", 1), *rack("r2", 1)]
    )
    assert domains(found) == {"a": "r2"}
    assert reasons(found) == {"b": Reason.ALL_HELD}


@pytest.mark.parametrize(
    ("fields", "pods"),
    [
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 3}, 3),
        ({"parallelism": 4, "completions": 8, "succeeded": 6}, 2),
        ({"parallelism": 4, "completions": 8, "succeeded": 3}, 4),
        ({"parallelism": 4, "completions": 4, "succeeded": 4}, 0),
    ],
)
def test_seeker_is_as_large_as_the_jobs_parallelism(fields: dict[str, Any], pods: int) -> None:
    found = choosing.seeker("ml", ChildJob(name="train-w-0", uid="uid", **fields))
    assert found == Seeker(naming.job_key("ml", "train-w-0"), "ml/train-w-0", pods)


def test_patch_sets_domain_and_removes_only_our_gate() -> None:
    pod = gated("a", gates=("other", exclusive.GATE), resource_version="7")
    assert exclusive.release_patch(pod, Domain("rack", "r1")) == {
        "metadata": {"uid": "uid-a-0", "resourceVersion": "7"},
        "spec": {"nodeSelector": {"rack": "r1"}, "schedulingGates": [{"name": "other"}]},
    }


@pytest.mark.parametrize("fields", [{"gates": ()}, {"gates": ("other",)}, {"topology": ""}, {"over": True}])
def test_pod_without_our_gate_does_not_wait(fields: dict[str, Any]) -> None:
    assert not exclusive.waits(gated("a", **fields))


class Simulation:
    """A cluster that follows ``place``, with a scheduler that binds anywhere in the domain."""

    def __init__(self, sizes: Mapping[str, int], jobs: Mapping[str, int]) -> None:
        self.nodes = {each.name: each for name, size in sizes.items() for each in rack(name, size)}
        self.jobs = dict(jobs)
        self.pods = {f"{job}-{i}": gated(job, i) for job, size in jobs.items() for i in range(size)}
        self.promised: dict[str, Domain] = {}

    def place(self, stale: Mapping[str, Pod]) -> Placements:
        """Place with outdated pods and the domains promised since."""
        seekers = [seeker(job, size) for job, size in self.jobs.items()]
        found = choosing.place(
            seekers, pods=tuple(stale.values()), nodes=tuple(self.nodes.values()), promised=self.promised
        )
        for one in found.assigned:
            self.promised[one.job] = one.domain
            for pod in one.pods:
                if pod.name in self.pods and exclusive.waits(self.pods[pod.name]):
                    selector = replace(NEEDS, selector=(("rack", one.domain.value),))
                    self.pods[pod.name] = replace(self.pods[pod.name], gates=(), needs=selector)
        return found

    def bind(self) -> None:
        """Have the scheduler bind pods, one per node."""
        taken = {pod.node for pod in self.pods.values() if not pod.over}
        for name, pod in self.pods.items():
            wanted = dict(pod.needs.selector).get("rack")
            free = [each.name for each in self.nodes.values() if each.labels["rack"] == wanted and each.usable]
            spare = [each for each in free if each not in taken]
            if wanted is not None and not pod.node and not pod.over and spare:
                self.pods[name] = replace(pod, node=spare[0])
                taken.add(spare[0])

    def by_domain(self) -> dict[str, set[str]]:
        """Return the Jobs that are in a domain or on their way there."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for pod in self.pods.values():
            if not pod.over and (where := dict(pod.needs.selector).get("rack")) is not None:
                found[where].add(pod.job)
        return found


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["place", "stale place", "bind", "see"]), st.just(0)),
        st.tuples(st.sampled_from(["recreate", "finish", "break", "hint"]), st.integers(0, 30)),
    ),
    max_size=25,
)


@given(
    sizes=st.dictionaries(st.sampled_from(["r1", "r2", "r3", "r4"]), st.integers(1, 3), min_size=1),
    jobs=st.dictionaries(st.sampled_from("abcde"), st.integers(1, 3), min_size=1),
    history=steps,
)
def test_placement_gives_each_domain_one_job_and_vice_versa(
    sizes: dict[str, int], jobs: dict[str, int], history: list[tuple[str, int]]
) -> None:
    simulation = Simulation(sizes, jobs)
    seen = dict(simulation.pods)
    for what, which in history:
        before = simulation.by_domain()
        names, nodes = sorted(simulation.pods), sorted(simulation.nodes)
        pod, broken = names[which % len(names)], nodes[which % len(nodes)]
        match what:
            case "place" | "stale place":
                seen = seen if what == "stale place" else dict(simulation.pods)
                unused = {name for name in sizes if not before.get(name)}
                for one in simulation.place(seen).assigned:
                    held = one.job in before.get(one.domain.value, set()) or one.domain == simulation.promised.get(
                        one.job
                    )
                    assert held or one.domain.value in unused
            case "see":
                seen = dict(simulation.pods)
                simulation.promised = {
                    job: domain
                    for job, domain in simulation.promised.items()
                    if job not in simulation.by_domain()[domain.value]
                }
            case "bind":
                simulation.bind()
            case "recreate":
                old = simulation.pods[pod]
                simulation.pods[pod] = gated(old.job, int(pod.split("-")[1]))
            case "finish":
                simulation.pods[pod] = replace(simulation.pods[pod], over=True)
            case "break" | "hint":
                simulation.nodes[broken] = replace(simulation.nodes[broken], usable=what == "hint")
        racks = simulation.by_domain()
        assert all(len(owners) <= 1 for owners in racks.values()), racks
        for job in jobs:
            assert sum(job in owners for owners in racks.values()) <= 1, racks


@given(
    sizes=st.dictionaries(st.sampled_from(["r1", "r2", "r3", "r4"]), st.integers(0, 4), min_size=1),
    unusable=st.sets(st.integers(0, 15)),
    jobs=st.dictionaries(st.sampled_from("abcde"), st.integers(1, 5), min_size=1),
)
def test_domain_has_room_and_job_waits_only_without_one(
    sizes: dict[str, int], unusable: set[int], jobs: dict[str, int]
) -> None:
    every = [each for name, size in sizes.items() for each in rack(name, size)]
    nodes = [replace(each, usable=index not in unusable) for index, each in enumerate(every)]
    room = {name: sum(each.usable and each.labels["rack"] == name for each in nodes) for name in sizes}
    found = place([seeker(job, size) for job, size in jobs.items()], [gated(job) for job in jobs], nodes)
    got = domains(found)
    assert all(room[where] >= jobs[job] for job, where in got.items())
    assert len(set(got.values())) == len(got)
    left = [room[name] for name in sizes if name not in got.values()]
    assert all(size < jobs[each.job] for each in found.waiting for size in left)
    assert got.keys() | {each.job for each in found.waiting} == jobs.keys()
