"""Which hosts are warm, and for how long."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from choreography_ray.core.hosts import MAX_IDLE_SECONDS, HostPhase, HostTable, HostView, host_id
from choreography_ray.model import HostId, StepHosting
from choreography_ray.records import Group, Run, StepKind

KINDS = (
    StepKind(0, "m:A", StepHosting.SHARED_ACTORS),
    StepKind(10, "m:B", StepHosting.SHARED_ACTORS),
    StepKind(10, "m:C", StepHosting.SHARED_ACTORS, ray_options={"num_gpus": 1}),
)
HOST = HostId("shared-1.1")


def warm(now: float = 0.0) -> HostTable:
    table = HostTable(KINDS)
    table.add(HostView(HOST, 0, HostPhase.STARTING))
    table.give(HOST, Group(HOST, Run(1, 1), 1, (0,), (1,)), is_single=True)
    table.came_up(HOST, now)
    table.rest(HOST, now)
    return table


def test_names_are_made_from_the_run_and_tell_what_the_host_is() -> None:
    assert host_id(StepHosting.SHARED_ACTORS, Run(7, 3), 5) == "shared-7.3"
    assert host_id(StepHosting.OWN_ACTOR, Run(7, 3), 5) == "step5-7.3"


def test_a_warm_host_serves_kinds_that_want_the_same_actor() -> None:
    table = warm()
    assert table.has_idle(0)
    assert table.has_idle(1)
    assert not table.has_idle(2)
    assert table.take_idle(1) == HOST
    assert table.take_idle(1) is None


def test_the_order_of_options_makes_no_other_actor_and_their_values_do() -> None:
    options = ({"num_cpus": 0, "resources": {"a": 1, "b": 2}}, {"resources": {"b": 2, "a": 1}, "num_cpus": 0})
    kinds = [
        StepKind(0, "m:A", StepHosting.SHARED_ACTORS, 1, each)
        for each in (*options, {"num_cpus": 0, "resources": {"a": 1}}, None)
    ]
    table = HostTable((*kinds, replace(kinds[0], steps_per_actor=2)))
    table.add(HostView(HOST, 0, HostPhase.LIVE))
    assert [table.alike(kind) for kind in range(5)] == [1, 1, 0, 0, 0]


def test_a_host_that_is_starting_counts_until_it_is_up_or_gone() -> None:
    table = HostTable(KINDS)
    table.add(HostView(HOST, 0, HostPhase.STARTING))
    assert table.starting == 1
    table.drop(HOST)
    assert table.starting == 0
    assert table.drop(HOST) is None


def test_a_host_that_waits_for_its_resources_says_so_until_it_is_up() -> None:
    table = HostTable(KINDS)
    table.add(HostView(HOST, 0, HostPhase.STARTING))
    table.waited(HOST)
    table.waited(HostId("gone"))
    assert [view.is_waiting for view in table.all()] == [True]
    table.came_up(HOST, 1.0)
    assert [view.is_waiting for view in table.all()] == [False]


def test_a_host_that_is_gone_is_no_host_that_steps_could_work_on() -> None:
    table = warm()
    assert [table.alike(kind) for kind in range(3)] == [1, 1, 0]
    table.drop(HOST)
    assert table.alike(0) == 0


def test_hosts_that_the_next_stage_has_no_use_for_are_named() -> None:
    assert warm().useless([2]) == [HOST]
    assert warm().useless([1]) == []


@given(st.floats(0, 1e9))
def test_a_host_is_idle_for_too_long_exactly_when_it_said_so(now: float) -> None:
    """Seen once: rounding put one behind the other, and the job asked for the same moment again, at full speed."""
    table = warm(now)
    end = table.next_idle_end
    assert end is not None
    assert end == now + MAX_IDLE_SECONDS
    assert table.idle_until(end) == [HOST]
