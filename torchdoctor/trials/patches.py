"""The patches of the sets of a search: made, run against the untouched program, or rejected."""

from dataclasses import replace

from torchdoctor.advice.wording import SourcePatch
from torchdoctor.schema import Evidence, RejectedPatch, fact
from torchdoctor.trials.arm_specs import PATCH, ArmSpecs
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.beliefs import Members
from torchdoctor.trials.log import Log


class Patches:
    """Makes the patch of a set once, and keeps what became of it.

    `enabled`: False where no patch is wanted, so that fixes are proven at run time.
    """

    def __init__(self, log: Log, specs: ArmSpecs, *, enabled: bool) -> None:
        self._log = log
        self._specs = specs
        self.enabled = enabled
        self.arms: dict[Members, Arm] = {}  # of the patches that may be launched, or were
        self._sources: dict[Members, SourcePatch] = {}
        self.rejected: dict[Members, RejectedPatch] = {}

    @property
    def by_hand(self) -> frozenset[Members]:
        """Return the sets whose fixes work at run time alone, so that they are made by hand.

        A set with a member whose own patch may run is none of them: that one is better handed out
        as a patch, and the others by hand beside it.
        """
        alone = {members for members in self.rejected if self._works_by_hand(members)}
        return frozenset(
            members for members in alone if all(frozenset([name]) in alone for name in members)
        )

    def _works_by_hand(self, members: Members) -> bool:
        return self.rejected[members].problem in ("lacks-edit", "not-tried", "failed")

    @property
    def dropped(self) -> frozenset[Members]:
        """Return the sets that are not handed out in any form."""
        return frozenset(self.rejected) - self.by_hand

    def source(self, members: Members) -> SourcePatch | None:
        """Return the patch of a set that was not rejected; None: there is none."""
        return None if members in self.rejected else self._sources.get(members)

    def arm(self, members: Members, like: Arm) -> Arm | None:
        """Return the arm of the patched program, made at the first call; None: it cannot run.

        Args:
            members: the set.
            like: its arm at run time.
        """
        if not self.enabled or members in self.rejected:
            return None
        if members not in self.arms and not self._make(members, like):
            return None
        return self.arms[members]

    def _make(self, members: Members, like: Arm) -> bool:
        """Make the patch and its arm; return whether it can be launched."""
        patch, why_not = self._specs.patch(like.fixes)
        left_out = patch.left_out if patch is not None else list(like.fixes)
        if patch is None or left_out or why_not:
            lacking = patch is None or bool(left_out)
            why = why_not or fact("no-edit-for", fixes=left_out)
            self.reject(members, like, "lacks-edit" if lacking else "not-tried", why)
            return False
        key = PATCH if not self.arms else f"{PATCH}-{len(self.arms) + 1}"
        spec = self._specs.patched(patch, like.fixes)
        # What was compiled at run time lies in the cache by now.
        engine = self._log.engine
        more_s = max(self._log.expected_s(like) - self._log.expected_s(self._log.baseline), 0.0)
        setup_s = more_s + engine.image_s
        spec = replace(spec, name=f"{PATCH} of {like.label}", setup_s=setup_s)
        self.arms[members] = Arm(key=key, spec=spec, facts=like.facts)
        self._sources[members] = patch
        return True

    def reject(self, members: Members, like: Arm, problem: str, why: Evidence | None) -> None:
        """Take the patch of a set out of what may be handed out."""
        self.rejected[members] = RejectedPatch(fixes=like.fixes, problem=problem, why=why)
