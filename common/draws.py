"""The harness's random choices: functions of a key and of a seed that is new in each run.

A graded case's numbers depend only on the seed and on a key such as (solution, case, purpose), not
on the order of threads, so that a repeated case gets the same numbers. Timed calls run one after
the other and take their numbers from SOURCE directly. No option sets the seed, and no solution's
process receives it; tests replace SOURCE.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

SOURCE: random.Random = random.SystemRandom()
"""The operating system's random numbers; tests replace it by a seeded generator."""


def entropy() -> int:
    """Return 48 random bits."""
    return SOURCE.getrandbits(48)


def below(count: int) -> int:
    """Return a random integer of `range(count)`."""
    return SOURCE.randrange(count)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one seed, by key.

    For example, `Draws(7).number("alice/rope", "sbhd-5x2x3x8-float32", "mode")` is the same number
    in every process and on every machine.
    """

    seed: int
    deck: tuple[tuple[str, str], ...] = ()
    """The pairs (case, group) over which `dealt` spreads its numbers evenly."""
    _known: dict[tuple[str, ...], dict[str, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The position of each case in the deck, by key: sorting 12,600 cases again would be slow."""

    def number(self, *key: str) -> int:
        """Return 48 bits that depend only on the seed and on the key."""
        text = repr((self.seed, *key)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")

    def dice(self, *key: str) -> random.Random:
        """Return a generator that depends only on the seed and on the key."""
        return random.Random(self.number(*key))

    def dealt(self, among: int, case: str, *key: str) -> int:
        """Return a number below `among` for a case; all numbers are equally frequent in the deck.

        For example, in a deck of 40 cases `dealt(4, case, "alice/rope", "other inputs")` is 0 for
        ten cases. It is also 0 for one in four cases of each group, since most solutions support
        only some groups. For a case outside the deck the number depends only on the seed and the
        arguments.
        """
        if case not in self._positions(key):
            return self.number(case, *key) % among
        return (self.number(*key, "start", self.deck[0][0]) + self.position(case, *key)) % among

    def position(self, case: str, *key: str) -> int:
        """Return the case's position in the deck, shuffled within each group for this key.

        For a case outside the deck the position depends only on the seed and the arguments.
        """
        return self._positions(key).get(case, self.number(case, *key))

    def _positions(self, key: tuple[str, ...]) -> dict[str, int]:
        """Return the position of each case in the deck, shuffled within its group for this key."""
        if key not in self._known:
            dice = self.dice(*key, "deck")
            shuffled = sorted(self.deck, key=lambda entry: (entry[1], dice.random()))
            self._known[key] = {case: position for position, (case, _) in enumerate(shuffled)}
        return self._known[key]
