"""Takes parts of what keeps the state away, too: members of an ensemble, answers of a bucket."""

from __future__ import annotations

import signal
import time

from kazoo.handlers.threading import KazooTimeoutError
from tests.campaign import sessions
from tests.campaign.nemesis import AMID_S, SEEN_S, Nemesis, until
from tests.campaign.witness import APPEND
from tests.support.oracle.history import HistoryError
from tests.support.zookeeper_ensemble import start_all

ALWAYS = 1_000_000
HELD_PUT_WON = "an append that came after another led is taken"
SHARES = (0.2, 0.9)
QUORUM = 2
SESSION_S = 8.0
"""A client that is not cut off connects again within this time, and is told."""
APPENDED_S = 0.5
ENSEMBLE, BUCKET = "ensemble", "bucket"
STORE_KINDS = {
    "lose a member": "one of three ZooKeepers is killed, and started later",
    "lose the quorum": "two of three ZooKeepers are killed, and started later",
    "expire the sessions": "ZooKeeper ends the leader's sessions, as if it were unheard too long",
    "answer 503": "a share of the requests to the bucket is answered by 503",
    "lose answers": "a share of the requests to the bucket is carried out, and not answered",
    "hold a put": "the PUT of an append is kept on its way, and its leader stands still, until "
    "another leads: it comes to nothing",
}


class StoreNemesis(Nemesis):
    """See `Nemesis`. ``kinds`` may be of `STORE_KINDS`, too."""

    def _restart_the_state(self) -> bool:
        """Not while the nemesis has killed some of it."""
        return not self._is_away(ENSEMBLE) and super()._restart_the_state()

    def _lose_a_member(self) -> bool:
        return self._lose_members(1)

    def _lose_the_quorum(self) -> bool:
        return self._lose_members(QUORUM)

    def _lose_members(self, count: int) -> bool:
        """Struck is a quorum only once the one that is left says that it serves nobody."""
        members = list(self._place.members)
        if not members or self._is_away(ENSEMBLE):
            return False
        lost = self._rng.sample(members, count)
        left = [member for member in members if member not in lost]
        for member in lost:
            member.kill()
        if count >= QUORUM and not until(lambda: not left[0].serves or None, AMID_S):
            start_all(lost)
            return False
        self._note(f"{', '.join(member.title for member in lost)} killed")
        seconds = self._lease_s * self._rng.uniform(0.5, 2.5)
        return self._begin(ENSEMBLE, seconds, lambda: start_all(lost))

    def _expire_the_sessions(self) -> bool:
        """Struck are only those whose clients were told."""
        members = self._place.members
        host = self._leading() if members and not self._is_away(ENSEMBLE) else None
        if host is None or host.capture is None:
            return False
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in members)
        directory, process = host.directory, host.capture.pid
        ended = sessions.living(directory, process)
        try:
            for session in ended:
                sessions.expire(hosts, session)
        except KazooTimeoutError:  # the nemesis has just restarted all of them
            return False
        met = until(lambda: sessions.have_expired(directory, process, ended) or None, SESSION_S)
        self._note(f"{len(ended)} sessions of {host.name} expired{'' if met else ', unmet'}")
        return bool(ended and met)

    def _answer_503(self) -> bool:
        return self._disturb_the_bucket("busy")

    def _lose_answers(self) -> bool:
        return self._disturb_the_bucket("lose_answer")

    def _disturb_the_bucket(self, fault: str) -> bool:
        """Struck is only what a request has met."""
        bucket = self._place.bucket
        if bucket is None or self._is_away(BUCKET):
            return False
        share = self._rng.uniform(*SHARES)
        bucket.arm(fault, "", ALWAYS, share)
        if not until(lambda: bucket.struck or None, AMID_S):
            bucket.disarm()
            return False
        self._note(f"{fault}, {share:.2f} of the requests")
        seconds = self._lease_s * self._rng.uniform(0.5, 2.5)
        return self._begin(BUCKET, seconds, bucket.disarm)

    def _hold_a_put(self) -> bool:
        """Raise HistoryError if the store takes it although another leads."""
        bucket, host = self._place.bucket, self._leading()
        if self._away or bucket is None or host is None or host.capture is None:
            return False
        last = max((n.ended for n in host.notes.so_far() if n.what == APPEND), default=0.0)
        if time.monotonic() > last + APPENDED_S:  # its lease may be over
            return False
        capture, other = host.capture, next(one for one in self._hosts if one is not host)
        seen = len(other.notes.so_far())
        bucket.arm("hold", self._place.put_of_segment)
        if not until(lambda: bucket.struck or None, AMID_S):
            bucket.disarm()
            return False
        capture.send(signal.SIGSTOP)
        led = until(
            lambda: next((n for n in other.notes.so_far()[seen:] if n.what == "leads"), None),
            SEEN_S,
        )
        (answer,) = bucket.deliver()
        capture.send(signal.SIGCONT)
        self._note(
            f"a PUT of {host.name} is held{'' if led else ', nobody led'}: {answer.decode()}"
        )
        if led and answer.split()[1] not in (b"409", b"412"):
            raise HistoryError(f"{HELD_PUT_WON}: {answer.decode()}")
        return led is not None

    def _is_away(self, what: str) -> bool:
        return what in {fault.what for fault in self._away}
