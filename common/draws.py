"""The harness's random choices: functions of a seed that is drawn anew each time, and of a key.

What is drawn for a graded case depends on the seed and on a key such as (solution, case, purpose),
never on the order in which threads come to it, so that a case that is asked again gets the same.
Timed calls, which come one after the other, take numbers of SOURCE as they come. No option sets the
seed, and no solution's process gets it; tests replace SOURCE.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

SOURCE: random.Random = random.SystemRandom()
"""The operating system's random numbers; tests put a generator with a seed in its place."""


def entropy() -> int:
    """Return 48 random bits."""
    return SOURCE.getrandbits(48)


def below(count: int) -> int:
    """Return a random number from 0 up to but without `count`."""
    return SOURCE.randrange(count)


@dataclass(frozen=True)
class Draws:
    """The numbers that one seed gives, one for each key.

    For example, `Draws(7).number("alice/rope", "sbhd-5x2x3x8-float32", "mode")` is the same number
    in every process and on every machine.
    """

    seed: int
    deck: tuple[tuple[str, str], ...] = ()
    """The cases among which `dealt` deals evenly, each with its kind."""
    _known: dict[tuple[str, ...], dict[str, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The places of the deck by key: a deck may have 12,600 cases, which to hash takes a while."""

    def number(self, *key: str) -> int:
        """Return 48 bits that depend on the seed and on the key alone."""
        text = repr((self.seed, *key)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")

    def dice(self, *key: str) -> random.Random:
        """Return a generator that depends on the seed and on the key alone."""
        return random.Random(self.number(*key))

    def dealt(self, among: int, case: str, *key: str) -> int:
        """Return a number below `among` for a case: over the deck each comes equally often.

        For example, of a deck of 40 cases `dealt(4, case, "alice/rope", "other inputs")` is 0 for
        ten. The cases of a kind stand together, so that it is 0 for one in four of these too: most
        solutions answer some kinds alone. Without a deck the number is the case's own.
        """
        places = self._placed(key)
        if case not in places:
            return self.number(case, *key) % among
        return (self.number(*key, "start", self.deck[0][0]) + places[case]) % among

    def _placed(self, key: tuple[str, ...]) -> dict[str, int]:
        """Return the place of each case of the deck, shuffled within its kind for this key."""
        if key not in self._known:
            dice = self.dice(*key, "deck")
            shuffled = sorted(self.deck, key=lambda entry: (entry[1], dice.random()))
            self._known[key] = {case: place for place, (case, _) in enumerate(shuffled)}
        return self._known[key]
