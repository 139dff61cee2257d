"""Each rule of docs/scale.md is needed: without it a test of the engines fails.

A mutation replaces a few words of one function; the test then runs once more in this process.
"""

from __future__ import annotations

import inspect
import textwrap

import pytest
from msgspec.structs import replace

from common.commands import engines as options
from common.engines import benching, grading, ray_engine
from common.engines.engine import Engine, Executor
from common.engines.ray_engine import RayEngine, RemoteExecutor
from tests.engines import (
    test_nodes,
    test_one_device,
    test_recording,
    test_resuming,
    test_several_devices,
)

FUTURE = "from __future__ import annotations"
FAULTS = {
    "a lost case goes elsewhere": (
        RayEngine, "_free", "candidate is lost_on", "candidate.name",
        test_several_devices.test_a_lost_case_is_done_once_more_elsewhere_and_alone,
    ),
    "once all others are done": (
        RayEngine, "run", "lost.append((executor, suspects))",
        "waiting[executor.kind].append(suspects)",
        test_several_devices.test_a_lost_case_is_done_once_more_elsewhere_and_alone,
    ),
    "each solution alone": (
        RayEngine, "_retry", "in solutions:", "in [*solutions][:1]:",
        test_several_devices.test_a_lost_case_is_done_once_more_elsewhere_and_alone,
    ),
    "what only waited behind it is not suspected": (
        RayEngine, "run", "_split(task, SUSPECTS)", "_split(task, 10**9)",
        test_several_devices.test_a_lost_case_is_done_once_more_elsewhere_and_alone,
    ),
    "what was whole is not run again": (
        RemoteExecutor, "word", "self.left.pop(answer.of[1], None)", "pass",
        test_several_devices.test_a_lost_case_is_done_once_more_elsewhere_and_alone,
    ),
    "a case that is lost twice is crashed": (
        RayEngine, "_retry", "if self._lost:", "if False:",
        lambda: test_several_devices.test_a_case_that_is_lost_again_is_crashed(1),
    ),
    "the answers to a case come together": (
        ray_engine, "by_case", "== {*task.due[case]}", "!= {}.keys()",
        test_several_devices.
        test_the_answers_to_a_case_come_together_and_those_of_one_that_did_not_fit_at_the_end,
    ),
    "a loss behind the last answer costs nothing": (
        RayEngine, "_receive_answers", "if executor.task and executor.left:", "if executor.task:",
        test_several_devices.test_a_station_that_is_lost_after_its_answers_costs_no_verdict,
    ),
    "where no executor is left the command ends": (
        RayEngine, "_receive", "raise UserError(", "raise RuntimeError(",
        test_several_devices.test_where_no_station_is_left_the_same_command_goes_on,
    ),
    "a lost executor is not waited for for ever": (
        RayEngine, "_check_silence", "not busy and", "False and",
        test_several_devices.test_a_lost_station_that_does_not_come_back_is_waited_for_no_longer,
    ),
    "an executor at work that says nothing is killed": (
        RayEngine, "_check_silence", "executor.interrupt()", "raise ValueError",
        test_several_devices.
        test_a_station_at_work_that_says_nothing_is_killed_and_starts_again,
    ),
    "a task given to an executor whose node has ended is done elsewhere": (
        RayEngine, "_check_silence", "executor.cancel()", "pass",
        test_several_devices.
        test_a_task_given_to_a_station_whose_node_has_ended_is_done_elsewhere,
    ),
    "the harness's own exception ends the command": (
        ray_engine, "_failure_of", "RuntimeError(", "Lost(",
        test_several_devices.test_a_failure_of_the_harness_ends_the_sweep,
    ),
    "an executor has the room that its kind had": (
        RayEngine, "_admit", "if restarted:", "if False:",
        test_several_devices.test_a_device_with_less_room_than_before_does_not_start_again,
    ),
    "a case is for all devices of a kind": (
        Engine, "cases", "if name in shared", "",
        test_several_devices.test_devices_of_a_kind_take_the_cases_that_all_have_room_for,
    ),
    "grade goes on from what it found": (
        grading, "_graded", "if line.kind == kind", "if False",
        test_resuming.test_a_kind_that_has_left_the_cluster_keeps_its_verdicts,
    ),
    "other versions begin anew": (
        grading, "_agree", "one.versions[k] == other.versions[k]", "True",
        test_resuming.test_other_versions_of_a_kind_begin_anew,
    ),
    "what is done is planned no more": (
        Engine, "tasks", "if (name, op, case) not in done", "",
        test_one_device.test_what_an_earlier_run_did_is_planned_no_more,
    ),
    "bench goes on with an unfinished run": (
        benching, "_unfinished", "return last if same", "return None if same",
        test_recording.test_an_interrupted_run_is_gone_on_with,
    ),
    "of the same sources": (
        benching, "_unfinished", "same and all(", "same or all(",
        lambda: test_recording.test_otherwise_a_new_one_starts(
            {"digests": {test_recording.ALICE: ("s2", "h1")}}
        ),
    ),
    "of the same versions": (
        benching, "_unfinished", "last.versions, last.selection", "fresh.versions, last.selection",
        lambda: test_recording.test_otherwise_a_new_one_starts(
            {"fresh": replace(test_recording.FRESH, versions={"torch": "3"})}
        ),
    ),
    "a case without all its rows is done again": (
        benching, "_complete",
        "all((*case, direction) in known for direction in DIRECTIONS)", "True",
        test_resuming.test_a_case_without_all_its_rows_is_done_again,
    ),
    "a missing package is one line": (
        ray_engine.Actor, "start", "self._executor.ready()", "Executor(self._job).ready()",
        test_nodes.test_a_station_needs_the_packages_of_the_jobs_peers,
    ),
    "a GPU that torch does not find is one line": (
        Executor, "__init__", 'job.device == "cuda" and', "False and",
        test_one_device.test_a_station_without_a_gpu_is_one_line,
    ),
}  # fmt: skip
"""What is mutated, its words, those in their place, and the test; without words, a value."""
HONEST = {
    "all solutions answer a case on one device": (
        Engine, "tasks", "tuple(name for name in names[op]", "tuple(name for name in names[op][:1]",
        test_several_devices.test_every_case_is_done_once_and_by_all_stations,
    ),
    "a timed executor has its GPU alone": (
        options, "chosen", 'and command == "bench"', "and False",
        lambda installed, monkeypatch: test_one_device.test_stations_that_share_a_gpu_time_nothing(
            installed, monkeypatch
        ),
    ),
    "executors have at least two cores": (
        ray_engine, "share_cores", "size < 2", "size < 1",
        test_nodes.test_stations_have_cores_of_their_own,
    ),
    "executors share no core": (
        ray_engine, "share_cores", "cores[i * size : (i + 1) * size]", "cores",
        test_nodes.test_stations_have_cores_of_their_own,
    ),
    "a row tells node and device": (
        Executor, "_answer", "**where", "",
        test_one_device.test_a_row_tells_its_node_and_device,
    ),
    "a case's row from another device says so": (
        benching.Recording, "noted", "other == row.device", "True",
        test_resuming.test_a_row_from_another_device_than_its_cases_first_says_so,
    ),
    "an interrupted run's rows too": (
        benching.Recording, "__post_init__", "self.noted(row)", "pass",
        test_resuming.test_a_run_that_goes_on_on_another_device_says_so,
    ),
    "executors of a kind have the same versions": (
        RayEngine, "_admit", "first.device_info.versions != ready.device_info.versions", "False",
        test_several_devices.test_a_station_with_other_versions_takes_no_part,
    ),
    "the CPU is no GPU of a cluster": (
        options, "_device_of_cluster", 'if options.device == "cpu":', "if False:",
        lambda installed: test_one_device.test_options_that_do_not_go_together_are_said(
            {"engine": "ray"}, "--engine ray needs GPUs", installed
        ),
    ),
}  # fmt: skip
WALLS = {
    "a solution writes nowhere in a node's project": (
        ray_engine, "_leave_the_project", "tempfile.tempdir = str(folder)", "str(folder)",
        test_nodes.test_a_solution_may_not_write_where_ray_unpacks_the_project,
    ),
    "only the harness and the solutions travel": (
        ray_engine, "runtime_environment", "if path.name not in TRAVELS", "if False",
        test_nodes.test_a_node_gets_the_harness_and_the_solutions_alone,
    ),
    "a cluster of its own listens at the loopback address": (
        ray_engine, "connect", "os.environ.update(OWN | os.environ)", "pass",
        test_nodes.test_without_an_address_a_cluster_listens_at_the_loopback_address_alone,
    ),
    "an address that nothing listens at is one line": (
        ray_engine, "connect", "_reach(address)", "pass",
        test_nodes.test_an_address_is_asked_before_ray_is,
    ),
}  # fmt: skip
RULES = FAULTS | HONEST | WALLS


def mutate(patch, owner, name, words, others):
    """Put other words in the place of a function's, or another value in that of a constant."""
    if words is None:
        patch.setattr(owner, name, others)
        return
    function = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(words) == 1, f"{name} has changed: name other words of it"
    source = source.replace(words, others)
    made = {}
    if not inspect.isclass(owner):  # others may have imported the function by its name
        exec(f"{FUTURE}\n{source}", function.__globals__, made)
        patch.setattr(function, "__code__", made[name].__code__)
        return
    source = source.replace("super()", f"super({owner.__name__}, self)")
    exec(f"{FUTURE}\n{source}", function.__globals__, made)
    patch.setattr(owner, name, made[name])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.slow
def test_a_rule_is_needed(rule, request, monkeypatch):
    *mutation, test = RULES[rule]
    values = {name: request.getfixturevalue(name) for name in inspect.signature(test).parameters}
    with monkeypatch.context() as patch:
        mutate(patch, *mutation)
        with pytest.raises((Exception, pytest.fail.Exception)) as failed:
            test(**values)
    assert not isinstance(failed.value, SyntaxError | NameError), failed.value
