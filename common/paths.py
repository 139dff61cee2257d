"""The folders of this repository; every other module takes them from here."""

from pathlib import Path

COMMON = Path(__file__).resolve().parent
ROOT = COMMON.parent
CONTRIBUTORS = ROOT / "contributors"
OPS = COMMON / "ops"
PEERS = COMMON / "peers"
RESULTS = ROOT / "results"
PLOTS = ROOT / "docs" / "plots"
SITE = ROOT / "site"
PROFILES = ROOT / "profiles"
CACHE = ROOT / ".cache"
