"""This process as a member of an elastic job, whose processes come and go.

The launcher keeps a store that outlives every process. In it, generation n of the job is the list
of its members. Whoever learns of a change (the launcher of a death, the members of a process that
joins, a member that it has to leave) proposes generation n + 1, and the first proposal counts.

Collectives are numbered, because all members execute the same ones in the same order. When a member
is lost, the others form the group of the next generation and compare numbers. Since nobody finishes
a collective that another has not begun, they are at most one apart: who is behind gets the result
from who is ahead, and otherwise all repeat the collective, or the work that led to it.

Every wait for another member ends when there is a newer generation, so the death of any process is
turned into the next one. The members report to the launcher whether they wait: it starts a new
generation if all of them do for too long, and ends the job if that does not help.
"""

from stoker.core.membership.group import gather_objects
from stoker.core.membership.job_store import JOINS, MEMBER, SECRET, JobStore, Progress
from stoker.core.membership.member import Change, Membership, Regrouped

__all__ = [
    "JOINS",
    "MEMBER",
    "SECRET",
    "Change",
    "JobStore",
    "Membership",
    "Progress",
    "Regrouped",
    "gather_objects",
]
