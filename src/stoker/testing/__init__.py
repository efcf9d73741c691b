"""Test your training: prove that it resumes exactly, and inject faults."""

from stoker.testing import faults
from stoker.testing.compare import Difference
from stoker.testing.proof import KillRecord, Verdict, assert_resumes_exactly, prove

__all__ = ["Difference", "KillRecord", "Verdict", "assert_resumes_exactly", "faults", "prove"]
