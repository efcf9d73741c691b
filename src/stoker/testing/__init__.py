"""Test your training: prove that it resumes exactly, and inject faults."""

from stoker.testing import faults
from stoker.testing.compare import Difference
from stoker.testing.proof import assert_resumes_exactly, prove
from stoker.testing.verdict import KillRecord, Verdict

__all__ = ["Difference", "KillRecord", "Verdict", "assert_resumes_exactly", "faults", "prove"]
