"""How near right solutions come to the bounds of the numeric rule.

    python -m tests.generators.margins masked_ffn

Each small smoke case of the op is drawn anew in each round, and the solutions' errors are held
against what the rule allows: at 1 a right solution would be accused. It needs no GPU.
"""

import argparse
import collections
import dataclasses

import torch

from common import ops, solutions
from common.grading import compare
from common.grading.sweep import Sweep
from common.grading.tolerance import allowed, check_values
from common.verdicts import FINE


@dataclasses.dataclass
class Margins:
    """The errors of a case's results, in units of what the rule allows."""

    nearest: list[float] = dataclasses.field(default_factory=list)

    def check_values(self, actual, truth, budget, slack, device=None):
        """Apply the numeric rule, and note the worst element's error or the rms error."""
        wrong, ratio = check_values(actual, truth, budget, slack, device)
        largest = (
            truth.new_tensor(budget.largest) if budget.slices is None else budget.slices.bounds
        )
        errors = (actual.double() - truth).abs() / allowed(truth, actual.dtype, largest, slack)
        worst = float(errors.max())
        self.nearest.append(max(worst, ratio / slack) if budget.rms and ratio else worst)
        return wrong, ratio


def small(op):
    """Return the smoke cases that take no seconds."""
    return [case for case in op.cases("smoke") if not case.twin and not case.far_bytes]


def main():
    """Print the cases whose nearest result is nearest to its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op")
    parser.add_argument("--only", default="house,wenhaoli_xmu,zetwhite", help="contributors")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", default="", help="a part of the cases' names")
    options = parser.parse_args()
    op, handles = ops.load(options.op), options.only.split(",")
    several = [
        solution
        for solution in solutions.discover()
        if solution.op == op.name and solution.handle in handles
    ]
    noted, accused = collections.defaultdict(Margins), 0
    with Sweep("cpu") as sweep, torch.no_grad():
        for case in [case for case in small(op) if options.case in case.name] * options.rounds:
            compare.check_values = noted[case.name].check_values
            for graded in sweep.grade(op, [case], several):
                accused += sum(verdict.verdict not in FINE for verdict in graded.verdicts.values())
    print(f"{sum(len(each.nearest) for each in noted.values())} results, {accused} accused")
    nearest = sorted(noted.items(), key=lambda item: -max(item[1].nearest, default=0))
    for name, margins in nearest[:12]:
        print(
            f"{max(margins.nearest):.2f} of what is allowed: {name}, {len(margins.nearest)} results"
        )


if __name__ == "__main__":
    main()
