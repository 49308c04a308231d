"""Fixes and settings -> the `LaunchSpec` that launches them, by what the fix files declare."""

import math
from collections.abc import Mapping
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.advice.wording import SourcePatch, source_patch
from torchdoctor.launch.launch_spec import BASELINE, FixFile, LaunchSpec, Switching
from torchdoctor.observe.window import prepared_ahead
from torchdoctor.queries.lookup import allows_second_loader, training_loaders
from torchdoctor.schema import Evidence, FixSet, LoaderFacts, Recording, fact
from torchdoctor.schema.figures import fixes_with_settings
from torchdoctor.schema.specs import FixSpec, SwitchSpec

PATCH = "patch"
ABLATION = "ceiling-"
_DRAINED = 2.0  # times the stock, as it is filled while it is used


class ArmSpecs:
    """Makes the arms of a run's trials; `kind` begins the names of launches not for speed."""

    def __init__(self, fixes: Mapping[str, FixSpec], recording: Recording, kind: str = "") -> None:
        ceilings = catalogue.ceilings().items()
        self._fixes = dict(fixes)
        self._specs: dict[str, SwitchSpec] = {
            **fixes,
            **{ABLATION + name: ceiling for name, ceiling in ceilings},
        }
        self._recording = recording
        self._kind = kind
        self._loaders = training_loaders(recording)

    def of(self, fixes: FixSet) -> LaunchSpec:
        """Return the arm with these fixes switched on; of none, the untouched program."""
        specs = [
            (self._fixes[fix], settings) for fix, settings in fixes.items() if fix in self._fixes
        ]
        variables: dict[str, str | None] = {}
        for spec, settings in specs:
            variables |= spec.environment(settings)
        return LaunchSpec(
            # The engine tells arms apart by their names, so settings are part of them.
            name=self._kind + (fixes_with_settings(fixes) or BASELINE),
            fixes=tuple(
                FixFile(fix, Path(self._specs[fix].file), values) for fix, values in fixes.items()
            ),
            variables=variables,
            setup_s=sum(
                spec.setup_s + spec.more_setup_s(settings, self._recording)
                for spec, settings in specs
            ),
            settled_after=self._settled_after(fixes),
            workers=self._prepared(fixes)[0],
            switching=self._switching(fixes),
        )

    def patched(self, patch: SourcePatch, fixes: FixSet) -> LaunchSpec:
        """Return the program with the patch, which makes these fixes permanent."""
        permanent = fixes.limited_to(patch.fixes)
        settled, (workers, _) = self._settled_after(permanent), self._prepared(permanent)
        contents = patch.contents()
        return LaunchSpec(name=PATCH, contents=contents, settled_after=settled, workers=workers)

    def patch(self, fixes: FixSet) -> tuple[SourcePatch | None, Evidence | None]:
        """Return the patch that makes these fixes permanent, and why it cannot be launched."""
        patch = source_patch(fixes, self._recording, self._fixes)
        if patch is None and self._recording.workload.notebook is not None:
            return None, fact("cells-by-hand")
        if patch is None:
            return None, fact("no-certain-edit")
        if self._recording.environment.sandbox != "overlay":
            return patch, fact("no-overlay-for-patch")
        return patch, None

    def unsettled(self, fixes: FixSet, warmup_steps: int) -> list[Evidence]:
        """Return the fixes of which a warm-up was too short to show how they work, as doubts."""
        doubts = []
        for fix in fixes:
            alone = fixes.limited_to([fix])
            if self._filled_after(alone) > warmup_steps:
                doubts.append(fact("measured-while-filling", fix=fix))
            if self._drained_after(alone) > warmup_steps:
                doubts.append(fact("measured-with-stock", fix=fix))
        return doubts

    def _settled_after(self, fixes: FixSet) -> int:
        """Return iterations after which caches of fixes are full, new workers' stock is used up."""
        return max(self._filled_after(fixes), self._drained_after(fixes))

    def _filled_after(self, fixes: FixSet) -> int:
        """Return iterations of an epoch, where a fix keeps what it makes in it for later ones."""
        keeps = any(self._fixes[fix].fills_in_first_epoch for fix in fixes if fix in self._fixes)
        loader = self._loaders[0] if self._loaders else None
        if not keeps or loader is None or not loader.dataset_length or not loader.batch_size:
            return 0
        return self._iterations(math.ceil(loader.dataset_length / loader.batch_size))

    def _drained_after(self, fixes: FixSet) -> int:
        """Return iterations until what new workers made ready at the start is used up."""
        loading = {"num_workers", "prefetch_factor"}
        changed = [settings for settings in fixes.values() if loading & settings.keys()]
        if not self._loaders:
            return 0
        stocks = [math.prod(prepared_ahead(settings, self._loaders[0])) for settings in changed]
        return self._iterations(int(_DRAINED * max(stocks, default=0)))

    def _iterations(self, batches: int) -> int:
        steps = self._recording.steps
        return math.ceil(batches / max(steps.batches_per_step if steps else 1.0, 1.0))

    def _switching(self, fixes: FixSet) -> Switching | None:
        """Return how these are switched within one launch; None: they cannot be."""
        specs = [self._specs[fix] for fix in fixes]
        if not all(map(self._switches, specs)):
            return None
        settle_s = max((spec.settles_s for spec in specs), default=0.0)
        workers, ahead = self._prepared(fixes)
        return Switching(settle_s=settle_s, workers=workers, ahead=ahead)

    def _prepared(self, fixes: FixSet) -> tuple[int, int]:
        """Return the workers of the loader that fixes make, and what each prepares ahead."""
        loader = self._loaders[0] if self._loaders else LoaderFacts(ident=0)
        workers = 0
        ahead = 0
        for fix, settings in fixes.items():
            if self._specs[fix].by_own_loader:
                workers, ahead = prepared_ahead({}, loader)
            elif self._specs[fix].by_second_loader or "num_workers" in settings:
                workers, ahead = prepared_ahead(settings, loader)
        return workers, ahead

    def _switches(self, spec: SwitchSpec) -> bool:
        """Return True if a fix can be switched on and off in this program as it runs."""
        if not isinstance(spec, FixSpec):
            return True
        if spec.when != "between steps":
            return False
        return not spec.by_second_loader or allows_second_loader(self._recording)
