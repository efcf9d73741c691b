"""For tests of trainings: the proof that one resumes exactly, and faults to try it with."""

from stoker.testing import faults
from stoker.testing.compare import Difference
from stoker.testing.proof import assert_resumes_exactly, prove
from stoker.testing.verdict import KillMade, Verdict

__all__ = ["Difference", "KillMade", "Verdict", "assert_resumes_exactly", "faults", "prove"]
