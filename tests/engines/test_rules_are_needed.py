"""Each rule of docs/scale.md is needed: without it a test of the engines fails.

A mutation replaces a few words of one function; the test then runs once more in this process.
"""

from __future__ import annotations

import inspect
import textwrap

import pytest
from msgspec.structs import replace

from common.commands import engines as options
from common.engines import (
    benching,
    cluster,
    engine,
    grading,
    local,
    node,
    paces,
    process,
    ray_engine,
    serving,
    units,
)
from common.engines import station as one
from common.engines import work as waiting
from common.engines.engine import Fleet
from common.engines.work import Gathered, Work
from common.measure import recording
from tests.engines import (
    test_going_on,
    test_local,
    test_node,
    test_paces,
    test_ray_engine,
    test_scheduler,
    test_silence,
    test_units,
)
from tests.measure import test_recording

ENDLESS = str(10**9)
FUTURE = "from __future__ import annotations"
FAULTS = {
    "a lost station starts again": (
        Fleet, "_starts_again", "ready = _started(station)", 'ready = "it stays away"',
        test_scheduler.test_what_was_under_way_at_a_loss_is_done_again_elsewhere,
    ),
    "its cases go elsewhere first": (
        Work, "_next", "if station not in unit.lost_on or", "if True or",
        test_scheduler.test_what_was_under_way_at_a_loss_is_done_again_elsewhere,
    ),
    "who has no work waits for what may be lost": (
        Work, "take", "(self._waiting or self._away)", "self._waiting",
        test_scheduler.test_who_waits_for_work_is_let_go_at_the_end,
    ),
    "what was whole is not run again": (
        Work, "lost", "if case not in whole", "",
        test_scheduler.test_what_was_under_way_at_a_loss_is_done_again_elsewhere,
    ),
    "a case is let go once all have answered it": (
        Gathered, "take", "found.keys() == self._unit.due(case)", "True",
        test_scheduler.test_what_was_under_way_at_a_loss_is_done_again_elsewhere,
    ),
    "a case is let go once": (
        Gathered, "_let_go", "if case in self.whole:", "if False:",
        test_scheduler.test_every_case_is_done_once_and_by_all_stations,
    ),
    "a unit ends with every answer": (
        Gathered, "_let_go", "if not too_large and (missing :=", "if False and (missing :=",
        test_scheduler.test_a_unit_that_ends_without_an_answer_is_an_error,
    ),
    "where no station is left the command ends": (
        Fleet, "run", "if any(each.left", "if False and any(each.left",
        test_scheduler.test_where_no_station_is_left_the_same_command_goes_on,
    ),
    "a case is tried three times": (
        Work, "_again", "tries > TRIES", "tries > TRIES + 1",
        test_scheduler.test_the_verdict_says_how_it_came,
    ),
    "a case is not tried for ever": (
        Work, "_again", "tries > TRIES", f"tries > {ENDLESS}",
        test_scheduler.test_the_verdict_says_how_it_came,
    ),
    "then each solution has it alone": (
        waiting, "_one_by_one", "if last else", "if False else",
        lambda: test_scheduler.test_a_case_that_ends_its_station_each_time_ends_as_its_verdict(1),
    ),
    "what only waited behind it is not suspected": (
        Work, "_again", "lost_on=()", "tries=tries, lost_on=()",
        test_scheduler.test_what_waited_behind_a_loss_is_not_suspected,
    ),
    "a solution that ends two stations runs no more": (
        waiting, "LIVES", None, 10**9,
        test_scheduler.test_a_solution_that_ends_its_station_in_every_case_is_not_run_for_ever,
    ),
    "a station that is lost again and again leaves": (
        engine, "UNLUCKY", None, 10**9,
        test_scheduler.test_a_station_that_is_lost_again_and_again_leaves_its_part_to_the_others,
    ),
    "a loss behind the last answer costs nothing": (
        Work, "_again", "if not rest:", "if False:",
        test_scheduler.test_a_station_that_is_lost_after_its_answers_costs_no_verdict,
    ),
    "the harness's own exception ends the command": (
        Fleet, "_do", "raise _failure(event)", "return",
        test_scheduler.test_a_failure_of_the_harness_ends_the_sweep,
    ),
    "its traceback is told": (
        engine, "_failure", "if event.trace:", "if False:",
        test_scheduler.test_a_failure_of_the_harness_ends_the_sweep,
    ),
    "the stations end with the command": (
        Fleet, "__exit__", "station.close()", "None",
        test_scheduler.test_an_end_in_the_midst_ends_the_stations,
    ),
    "Ctrl-C waits for no station that starts": (
        Fleet, "_start", "self.__exit__()\n", "pool.shutdown()\n",
        test_scheduler.test_ctrl_c_waits_for_no_station_that_starts,
    ),
    "a station has the room that its kind had": (
        Fleet, "_starts_again", "if all(", "if True or all(",
        test_going_on.test_a_device_with_less_room_than_before_does_not_start_again,
    ),
    "a case is for all devices of a kind": (
        engine, "_in_all", "if name in shared", "",
        test_going_on.test_devices_of_a_kind_take_the_cases_that_all_have_room_for,
    ),
    "grade goes on from what it found": (
        grading, "_graded", "if each.kind == kind", "if False",
        test_going_on.test_a_kind_that_has_left_the_cluster_keeps_its_verdicts,
    ),
    "other versions begin anew": (
        grading, "_agree", "one.versions[k] == other.versions[k]", "True",
        test_going_on.test_other_versions_of_a_kind_begin_anew,
    ),
    "what is done is planned no more": (
        units, "plan", "taken[op].add(", "set().add(",
        test_scheduler.test_what_an_earlier_run_did_is_planned_no_more,
    ),
    "bench goes on with an unfinished run": (
        recording, "_unfinished", "return last if same else None", "return None",
        test_recording.test_an_interrupted_run_is_gone_on_with,
    ),
    "of the same sources": (
        recording, "_unfinished", "same = same and all(", "same = same or all(",
        lambda: test_recording.test_otherwise_a_new_one_starts(
            {"digests": {test_recording.ALICE: ("s2", "h1")}}
        ),
    ),
    "of the same versions": (
        recording, "_unfinished", "last.versions, last.selection", "fresh.versions, last.selection",
        lambda: test_recording.test_otherwise_a_new_one_starts(
            {"fresh": replace(test_recording.FRESH, versions={"torch": "3"})}
        ),
    ),
    "a case without all its rows is done again": (
        recording, "_done", "all((*case, each) in rows for each in DIRECTIONS)", "True",
        test_going_on.test_a_case_without_all_its_rows_is_done_again,
    ),
    "a station that says nothing is lost": (
        process.Process, "start", "settimeout(LONGEST_SILENCE)", "settimeout(None)",
        test_silence.test_a_station_that_hangs_is_killed,
    ),
    "it is killed": (
        process.Process, "_event", "self._kill()", "",
        test_silence.test_a_station_that_hangs_is_killed,
    ),
    "work that goes on is no silence": (
        serving, "serve", "worker.LISTENERS.append(driver.beat)", "",
        test_silence.test_a_station_whose_work_goes_on_says_so,
    ),
    "a missing package is one line": (
        process.Process, "start", "if not ready.trace", "if False",
        test_local.test_a_station_without_a_package_is_one_line,
    ),
    "a GPU that torch does not find is one line": (
        one.Station, "__init__", 'job.device == "cuda" and', "False and",
        test_local.test_a_station_without_a_gpu_is_one_line,
    ),
}  # fmt: skip
"""What is mutated, its words, those in their place, and the test; without words, a value."""
HONEST = {
    "all solutions answer a case on one device": (
        units, "plan", "solutions=tuple(names[op])", "solutions=tuple(names[op][:1])",
        test_scheduler.test_all_solutions_answer_a_case_on_one_device,
    ),
    "a lost case is measured again as a whole": (
        waiting, "_one_by_one", "unit.tries == TRIES", "True",
        test_scheduler.test_a_lost_case_stays_on_one_device,
    ),
    "a station sees its GPU alone": (
        local, "engine", "{VISIBLE: gpu}", "{VISIBLE: gpus[0]}",
        test_local.test_a_gpu_has_a_station_and_without_one_this_process_is_it,
    ),
    "a cluster's GPU has one station": (
        ray_engine, "slots_of", "range(count)", "range(2 * count)",
        test_ray_engine.test_slots_are_the_gpus_of_the_nodes_that_are_alive,
    ),
    "stations have at least two cores": (
        process, "share_cores", "each < 2", "each < 1",
        test_local.test_stations_have_cores_of_their_own,
    ),
    "stations share no core": (
        process, "share_cores", "cores[i * each : (i + 1) * each]", "cores",
        test_local.test_stations_have_cores_of_their_own,
    ),
    "a station keeps to its cores": (
        process.Process, "start", "elif self._cores:", "elif False:",
        test_local.test_a_station_keeps_to_its_cores,
    ),
    "a row tells node and device": (
        one.Station, "_rows", "**where", "",
        test_local.test_a_row_tells_its_node_and_device,
    ),
    "several GPUs are compared": (
        options, "chosen", 'command == "bench" and len(seen) > 1', "False",
        lambda monkeypatch: test_units.test_several_gpus_are_compared_before_they_are_timed(
            monkeypatch, "bench", ["0", "1"], True
        ),
    ),
    "a cluster's GPUs are compared": (
        ray_engine.RayFleet, "_placed", "timed and len(slots) > 1", "False",
        lambda: test_ray_engine.test_several_gpus_are_compared_before_they_are_timed(
            "bench", 2, True
        ),
    ),
    "5 % apart is an outlier": (
        paces, "APART", None, 0.2,
        lambda: test_paces.test_a_device_far_from_the_kinds_median_is_apart(
            {"a": 100.0, "b": 101.0, "c": 110.0, "d": 99.0}, {"c": 1.1}
        ),
    ),
    "of two GPUs the slower one is apart": (
        paces, "outliers", "median_low", "median",
        lambda: test_paces.test_a_device_far_from_the_kinds_median_is_apart(
            {"a": 120.0, "b": 100.0}, {"a": 1.2}
        ),
    ),
    "an outlier's rows say so": (
        benching, "_measured", "apart[kind], first", "{}, first",
        test_paces.test_the_record_of_a_device_apart_says_so,
    ),
    "only the outlier's do": (
        benching, "_noted", "row.device in apart", "apart",
        test_paces.test_a_row_says_that_its_device_is_apart,
    ),
    "a case's row from another device says so": (
        benching, "_noted", "other != row.device", "False",
        test_paces.test_a_row_from_another_device_than_its_cases_first_says_so,
    ),
    "an interrupted run's rows too": (
        benching, "_measured", "_devices(each.kept)", "{}",
        test_paces.test_a_run_that_goes_on_on_another_device_says_so,
    ),
    "stations of a kind have the same versions": (
        Fleet, "_agrees", "first.place.versions == ready.place.versions", "True",
        test_scheduler.test_a_station_with_other_versions_takes_no_part,
    ),
    "the CPU is no GPU of a cluster": (
        ray_engine.RayFleet, "__init__", 'job.device == "cpu" and', "False and",
        test_ray_engine.test_the_cpu_is_refused_as_its_rows_would_come_under_a_gpus_name,
    ),
}  # fmt: skip
WALLS = {
    "a node's copy lies where no solution writes": (
        node, "settle", 'folder() / name / "study"', 'source.parent / name / "study"',
        test_node.test_a_solution_may_write_where_ray_unpacks_and_not_to_the_copy,
    ),
    "a folder where solutions may write is refused": (
        node, "folder", "found.is_relative_to(each.resolve())", "False",
        test_node.test_a_folder_where_solutions_may_write_is_refused,
    ),
    "a changed copy is made anew": (
        node, "_intact", "and content(target) == name", "",
        test_node.test_a_copy_is_made_once_and_again_where_it_was_changed,
    ),
    "a copy has no compiled modules": (
        node, "_intact", 'not any(target.rglob("__pycache__"))', "True",
        test_node.test_a_copy_is_made_once_and_again_where_it_was_changed,
    ),
    "a copy that cannot be made is one line": (
        node, "settle", "except OSError", "except ZeroDivisionError",
        test_node.test_a_copy_that_cannot_be_made_is_one_line,
    ),
    "only the harness and the solutions travel": (
        node, "runtime_environment", "if each.name not in TRAVELS", "if False",
        test_ray_engine.test_a_node_gets_the_harness_and_the_solutions_alone,
    ),
    "a cluster of its own listens at the loopback address": (
        cluster, "connect", "if address is None:", "if False:",
        test_ray_engine.test_without_an_address_a_cluster_listens_at_the_loopback_address_alone,
    ),
    "an address that nothing listens at is one line": (
        cluster, "connect", "if address:", "if False:",
        test_ray_engine.test_an_address_is_asked_before_ray_is,
    ),
}  # fmt: skip
VALUES = {"where": "{home}/.cache/copies"}
"""Of parameters that are no fixtures."""
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
    values = {
        name: VALUES.get(name) or request.getfixturevalue(name)
        for name in inspect.signature(test).parameters
    }
    with monkeypatch.context() as patch:
        mutate(patch, *mutation)
        with pytest.raises((Exception, pytest.fail.Exception)) as failed:
            test(**values)
    assert not isinstance(failed.value, SyntaxError | NameError), failed.value
