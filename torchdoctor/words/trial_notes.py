"""What the fields of trials and recommendations mean: a part of `field_notes.py`."""

from __future__ import annotations

NOTES: dict[str, dict[str, str]] = {
    "Trial": {
        "fix": "Id of the fix.",
        "settings": "The values it was tried with.",
        "speedup": "Against the untouched program; null where it could not be measured.",
        "at_most": "Where the estimate lies above it: the most that the time of the step which the fix works on allows, as a speed-up; the rest is not the fix's. null: it does not, or that time is not known.",
        "verdict": "faster or slower: the 95 % interval excludes 1, and a few pairs do not stand against the time of the step that the fix works on; same: no difference worth the name; unclear: too few data; failed; refused.",
        "numerics": "Whether training stayed the same, judged by the losses and the samples.",
        "numerics_reason": "What that judgement rests on.",
        "risk": "0 same result, 1 rounding or order, 2 lower precision, 3 changes training.",
        "peak_memory_bytes": "Memory at its highest, with the fix.",
        "memory_change_bytes": "The same, less that of the untouched program.",
        "cost_s": "Time that its launches took.",
        "reason": "Why it was refused, failed or stayed unclear.",
        "pairs": "Launches with the fix that were compared with one of the untouched program.",
        "setup_s": "One-time cost, such as compilation.",
        "details": "What a fix alone noted in its first launch. torch-compile: `compile_s`, "
        "`graphs`, `breaks` and `recompile_reasons` with file and line, `recompiles`, `gave_up`, "
        "`compiled_at` (of its `passes`, the backward passes after which there was more). "
        "mixed-precision in float16: `skipped_steps`, `scale`.",
        "break_even_steps": "Steps after which the one-time cost has paid for itself.",
        "median_speedup": "Speed-up by the other of mean and median step; `speedup` holds the one that decides.",
    },
    "PatchTrial": {
        "speedup": "Against the untouched program; null: not measured.",
        "numerics": "Whether training stayed the same.",
        "numerics_reason": "What that rests on.",
        "pairs": "Pairs of launches behind the interval.",
        "reason": "Why it was not measured, or failed.",
    },
    "Recommendation": {
        "fixes": "In the order to apply them.",
        "speedup": "All of them together, measured against the untouched program.",
        "at_most": "Where the estimate lies above it: the most that the time of the step which they work on allows, as a speed-up. null: it does not, or that time is not known.",
        "numerics": "Whether training stayed the same with all of them.",
        "numerics_reason": "What that judgement rests on.",
        "peak_memory_bytes": "Memory at its highest with all of them.",
        "pairs": "Pairs of launches behind the speed-up.",
        "also_offered": "Fixes beside the set: confirmed by themselves, undecided or untried where nothing was confirmed, or such as no run can try.",
        "patch": "One unified diff of the program's own source for `git apply`, in `patch_folder`.",
        "patch_folder": "The folder that the patch's names are relative to.",
        "patch_fixes": "Ids of the fixes that the patch makes permanent.",
        "patch_trial": "The patched program against the untouched one; null: there is no patch.",
    },
    "RecommendedFix": {
        "fix": "Id of the fix.",
        "settings": "The values to use.",
        "edit": "Unified diff, where the edit could be made and verified.",
        "folder": "The folder that the edit's names are relative to; null: the one that the program was started in.",
        "instruction": "Otherwise what to change, as code.",
        "location": "Where in the source.",
        "standing": "recommended; or beside the set: confirmed by itself, undecided by its trial, undecided together with the other one (together), untried for want of time, offered where no run can try it.",
        "aim": "speed, or training: advice on training itself, which is not about speed.",
        "warning": "What advice on training may cost.",
        "also_changes": "What else its edit changes, one sentence each: other loaders that read the option whose default it changes.",
    },
}
