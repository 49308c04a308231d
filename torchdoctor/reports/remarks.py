"""The sentences of remarks, of doubts and of comparisons of results, by the names of facts."""

from collections.abc import Mapping
from dataclasses import replace

from torchdoctor.launch import layer_words
from torchdoctor.reports import templates
from torchdoctor.reports.vocabulary import of_unit
from torchdoctor.schema import Evidence, Remark, as_remark

REMARKS = {  # what weakens a report
    "probe-failed": "The probe failed in {failures} places; the first: {first}.",
    "no-sandbox": "No sandbox: each launch wrote to your own files.",
    "still-warming": "{Units} were still getting faster or slower while the program was observed; "
    "the shares of {the_step} may shift later.",
    "step-grows": "{The_step} grows: fixes were compared at the same, early {units}, and what "
    "treats the growth gains more later.",
    "few-steps": "Only {steps:counted {unit}, {units}} could be measured: the time of each is an "
    "estimate.",
    "costly-observing": "Observing a {unit} costs {cost_us:.0f} us, a large part of its time: "
    "its shares are uncertain.",
    "busy-machine": "Other programs kept {load} busy: speed-ups, above all of thread counts and "
    "workers, may be those of a busy machine.[ {long_steps:.0%} of the time is what slow {units} "
    "took beyond the median {unit}, and those programs may have caused it.] Measure on a quiet one "
    "before changing anything for good.",
    "files-beyond-cache": "The files that training reads do not fit into the page cache. Before "
    "each later launch, the files of the observed launch were dropped from it, so that fixes were "
    "tried as in a training that always reads new files.",
    "cold-files": "The observed launch read its files from the device, and later launches found "
    "them in the page cache: the diagnosis holds for the first epoch, the speed-ups for the epochs "
    "after it.",
    "loss-not-finite": "The loss of the untouched program is NaN or infinite from its backward "
    "pass {backward_pass} on: fixes were compared by the losses before it.",
    "step-time-changed": "A {unit} took {observed_s:seconds} on average during the diagnosis and "
    "{later_s:seconds} while fixes were tried: the machine's load changed, and perhaps the "
    "bottleneck with it. Run again on a quieter machine.",
    "noisy-machine": "The untouched program differed from itself by {ratio:ratio}x: smaller "
    "differences cannot be seen here.",
}
FILES = {  # of a trace's file
    "file-too-damaged": "{file} is too damaged: reading it was given up.",
    "file-ends-early": "{file} ends before its last event: it was cut off.",
    "file-ends-within-event": "{file} is cut off in the middle of an event: what follows is "
    "missing.",
    "file-damaged-in-compression": "{file} is damaged inside its compression ({error}).",
    "file-ends-in-compression": "{file} ends inside its compression: it was cut off.",
}
TRACES = {  # of what a trace holds
    **FILES,
    "events-damaged": "{events} events of {file} are damaged and were skipped.",
    "events-without-time": "{lost} of {events} events came with no time that can be (none, or over "
    "a century from all others); left out.",
    "events-without-duration": "{lost:counted event} of {events} came with no duration that can be "
    "(missing, negative, or longer than the trace by far), and counted as instants[; {on_device} "
    "ran on the GPU, whose time is too low].",
    "events-unknown": "{events} events are of no known category ({categories:list}) and were left "
    "out: if an accelerator ran them, its time is missing.",
    "marks-overlap": "{left_out} of {marks} step marks overlap others (several profilers, or a "
    "range named like a step) and were left out.",
    "steps-by-optimizer": "The profiler marked no steps: {marks} marks of Optimizer.step divide "
    "the trace into {steps}, each from the end of one mark to the end of the next.",
    "steps-unknown": "The trace has no step annotation (torch.profiler writes one where it has a "
    "`schedule` and profiler.step() is called): steps are unknown. Wherever a step is named, the "
    "whole trace is meant.",
    "last-steps-left-out": "The recording ended within the last {left_out} of {steps} steps, which "
    "have no or too few device events; left out.",
    "start-up-left-out": "The first {left_out_s:seconds} are left out, as the GPU's start-up lies "
    "there: {calls:counted call} held the host for {held_s:seconds}, most in {most_in}.",
    "no-gpu-events-in-part": "What can be read of the trace has no GPU events, and the profiler "
    "writes them last: that none ran on a GPU is not certain. GPU figures are not measured.",
    "no-gpu-events": "The trace has no GPU events: either nothing ran on a GPU or the profiler did "
    "not record it (activities without CUDA); GPU figures are not measured.",
    "silent-graphs": "{silent} of {launches} CUDA graph launches show no kernel: what ran in them "
    "is unknown, so GPU time is too low.",
    "launches-unnamed": "No device event names the call that launched it: steps end where the "
    "host's step ends, and work that runs on after it counts in the next one.",
    "replayed-whole": "Steps are unknown, so the whole trace was replayed, start-up included.",
    "replay-off": "The replay is {off:.0%} off the measured {whole}: what-ifs are not believed.",
    "replayed-with-own-delays": "Usual launch delays do not reproduce the {whole}, so every device "
    "event was replayed with the delay that it had.",
    "waits-unexplained": "{unexplained:.0%} of the {whole} are waits of the device for something "
    "that the trace does not show (other ranks, other processes, lost events); what-ifs keep them.",
    "no-device": "The trace holds no event of a GPU.",
    "too-few-steps": "The trace holds {steps:counted step}: too few to tell usual from unusual "
    "steps.",
    "stacks-recorded": "Python stacks were recorded (with_stack), which slows the host down.",
}
RANKS = {  # of several traces
    "file-left-out": "{reason}; it was passed over.",
    "file-annotated": "{path} is an annotated copy of a trace; it was passed over.",
    "file-cut-off": "{path} is cut off; it was passed over.",
    "file-without-rank": "{path} names no rank, and others do; it was passed over.",
    "files-left-out": "Files that are cut off, cannot be read or name no rank were left out: "
    "{files:list}.",
    "ranks-missing": "Traces of {traces} of {ranks} ranks are here, so the others may be slower: "
    "name a folder with the traces of all ranks.",
    "separate-recordings": "The {traces} traces name no rank and hold no communication: they count "
    "as separate recordings, and the figures are of {file}, which has the longest steps.",
    "collectives-apart": "The collectives of the traces could not be matched: those that look "
    "alike do not end at the same time, nor do steps begin together, so they may be of several "
    "runs. Ranks are not compared, and the figures are of {file}, whose steps without collectives "
    "are the longest.",
    "shares-of-rank": "The shares are of rank {rank}, which the others wait for.",
    "collectives-unmatched": "The shares are of rank {rank}, whose steps without collectives are "
    "the longest. The steps of all ranks begin together, but their collectives could not be "
    "matched one by one (events may be missing): which rank waits for which is not known.",
    "ranks-repeated": "Several traces are of rank {ranks:list} (windows of one run, or several "
    "runs): ranks are compared as if all of them ran together.",
    "clocks-aligned": "The ranks' clocks differ by up to {apart_s:seconds}. They were aligned on "
    "{collectives} collectives that all ranks ran, whose ends then agree within {scatter_us:.0f} "
    "us.",
    "clocks-not-aligned": "The ranks' clocks could not be aligned, which needs marked steps with "
    "collectives that all ranks ran alike. Waits for other ranks cannot be separated from the "
    "exchange itself, and whether the traces are of one run is not known.",
}
_CHANGES = "The dataset changes itself where it prepares a sample ({changes:each change|; }): "
FIXES = {  # of fixes, and of what a check could not tell
    "change": "{file:path}:{line}, {name}",
    "dataset-changed-in-workers": f"{_CHANGES}each worker would change a copy of its own, and the "
    "main process would not see it.",
    "dataset-changed-in-kept-workers": f"{_CHANGES}persistent workers would keep copies of their "
    "own, each changed for itself.",
    "dataset-unchanged-by-cache": f"{_CHANGES}a sample from a cache would not do it.",
    "fetch-beside-load": "The fetch got only {got:.0%} of {could:counted CPU} while other programs "
    "kept {load:.1f} of {cpus:g} busy: whether it computes or waits cannot be told now.",
    "fix-not-worded": "The {part} of the fix {fix} could not be written for this program "
    "({error}). `torchdoctor explain {fix}` shows its general form.",
}
RUNS = {  # of a run's story
    "run-interrupted": "The run was interrupted: the report holds what was measured.",
    "recording-unwritten": "Cannot write {path}: {problem}. Choose another place.",
    "recording-in-the-way": "Cannot write {path}: it is a link, or no file. Remove it to go on.",
    "report-unwritten": "Cannot write {path}: {problem}. Choose another place.",
    "report-in-the-way": "Cannot write {path}: it is a link, or no file. Remove it to go on.",
    "profile-failed": "{reason}",
    "processes-unseen": "The program runs in {processes} processes, and {told} told of their "
    "steps: do all nodes share {folder}? --output names another folder.",
    "calls-overlap": "{calls:,} calls began while one of another thread was under way: latency and "
    "throughput are told of the others alone. torchdoctor watch tells them of all.",
    "gpu-not-seen": "This torch was built for {built_for} and sees no GPU here: the program "
    "trained on the CPU. Run it where it will train, for instance within a batch job.",
    "no-profiler-window": "No profiler window: a launch for it takes more than the {most_s:.0f} s "
    "that the budget of {budget_s:.0f} s has for it (--budget). Operators and kernels are "
    "therefore not measured.",
    "rank-waits-longest": "All is told of rank {rank}: it waits longest.",
    "probe-file-unreadable": "The probe's file {file} could not be read: {error}.",
    "profiled-steps-differ": "Profiled steps took {profiled_s:seconds}, real ones {real_s:seconds}"
    "[, and waited for data {profiled_wait:percent} of them instead of {real_wait:percent}]: "
    "shares by operator and what-ifs by replay are of other conditions.",
    "share-partly-hidden": "The profile gives {removed} {profiled:.0%} of {a_step}. Without that, "
    "the program was {gain:interval} as fast. Other work hides the rest of that share.",
    "share-explains-less": "The profile gives {removed} {profiled:.0%} of {a_step}. Without that, "
    "the program was {gain:interval} as fast. The share explains less than that: one of the two "
    "measurements was disturbed.",
    "watched-run-used": "The time of {a_step} and its parts are those of {steps:,} {units} of the "
    "watched run in {folder}; {anew} were observed anew, for the rest.",
    "watched-run-too-little": "The watched run in {folder} was not used: it must be of one "
    "process, with {fewest} steps of which each has its own row.",
    "watched-run-differs": "The watched run in {folder} was not used: the {name} {then}, now "
    "{now}.",
    "watched-run-file-changed": "The watched run in {folder} was not used: {path} has changed "
    "since.",
    "watched-run-other-time": "The watched run in {folder} was not used: {a_step} took "
    "{then_s:seconds}, now {now_s:seconds}.",
}
LAUNCHES = {  # of how the program was launched
    "process-left-running": "A process of the program could not be ended.",
    "compiled-before": "Code that torch.compile made in an earlier run of this program was used "
    "again, so compiling took no longer than at a second start ({variable}=0 compiles anew).",
    "input-stayed-open": "The pipe to standard input stayed open and gave nothing for "
    "{silent_s:.0f} s: each launch read the {size_bytes} bytes that had come.",
    "cells-left-out": "{cells:counted line or cell, lines or cells} of {notebook} that only "
    "IPython understands were left out ({shown:list}): what they install or set is missing here.",
    "files-changed-unsandboxed": "{files} of your files changed while the program ran, as "
    "--no-sandbox lets it: {named:list}[ and {more} more].",
    "files-changed-in-sandbox": "{files} of your files changed while the program ran, in spite of "
    "the '{sandbox}' sandbox: {named:list}[ and {more} more].",
    "no-overlay": "What Python and torch write went to a scratch layer; other programs and "
    "libraries were denied to write to your files[ (no overlay: {why:fact})]. The mode, owner and "
    "times of a file are not kept from them.",
    "little-room": "Only {free_gib:.1f} GiB are free in {folder} for what a launch writes.",
    "layer-in-memory": "No disk here can hold a layer: what a launch writes is kept in memory.",
    "mount-silent": "The program did not see what is mounted on {path}, because it did not answer "
    "within {waited_s:.0f} s.",
    "not-writable": "Not writable in the sandbox: {path}: {reason}",
    "truncate-not-kept-away": "Landlock of this kernel (version {version}) does not keep programs "
    "and libraries from truncate(2), which cuts a file without opening it.",
    "never-beside-itself": "The program could not run side by side with itself, so its launches "
    "followed each other, which sees less in the same time.",
    "untouched-failed": "The untouched program itself failed after {iterations} iterations; what "
    "was measured before counts.",
    "launches-in-turns": "Launches followed each other, because {why:fact}: that sees less in the "
    "same time than side by side.",
    "no-other-seeds": "The budget left no time for launches with other seeds, which would tell "
    "whether training changed.",
    "measured-while-filling": "{fix} was measured while it still filled, as its first epoch does "
    "not fit into the warm-up of a trial: later epochs may gain more.",
    "measured-with-stock": "{fix} was measured with batches in stock, which its workers had made "
    "ready before and which the warm-up of a trial was too short for: a long training may gain "
    "less.",
    "results-unchecked": "Whether {fixes} changes results could not be checked: {why:fact}.",
}
NODES = {  # of a cluster
    "ran-in-job": "It ran in Slurm's job {job} of {nodes:counted node} and used {cpus:g} of this "
    "node's CPUs (affinity: {affinity})[, GPUs {gpus}].",
    "job-shortens-budget": "The job's time limit leaves {left_s:.0f} s, so the budget was "
    "{budget_s:.0f} s.",
    "srun-outside-layer": "srun starts its processes outside the scratch layer: what they write is "
    "kept.",
    "job-requeued": "The job was requeued, and {before} is of before: this is {now}.",
    "fewer-nodes": "--nodes asks for {asked}, and {able:counted node} can run pairs.",
    "fewer-nodes-in-job": "--nodes asks for {asked}, and job {job} has {nodes:counted node}: these "
    "were used.",
    "nodes-measured": "These nodes measured pairs: {nodes:each pairs-of-node}.",
    "pairs-of-node": "{node} ({pairs})",
    "nodes-unlike": "The nodes are not alike ({kinds:list|; }): both sides of a pair ran on one "
    "node, and the speed-ups are averages over such nodes.",
    "pairs-unfinished": "{pairs:counted pair} had not ended on other nodes when the search did.",
    "pair-lost": "{node} lost a pair: {why:sentence}",
    "node-left-out": "{node} was left out from then on: {why:sentence}",
    "no-node-left": "No node is left that measures pairs ({nodes:each why-node-is-out| })",
    "why-node-is-out": "{node}: {why:sentence}",
    "program-failed-on-node": "the program itself failed on {node}: {why:sentence}",
    "reason-unknown": "unknown.",
    "path-not-on-node": "{path} does not exist on {node}: the program must lie at one path "
    "everywhere.",
    "python-not-on-node": "The interpreter {python} does not exist on {node}.",
    "torch-not-on-node": "The interpreter {python} has no torch on {node}.",
    "overlay-not-on-node": "Changed files need the overlay sandbox on {node}[: {why:fact}].",
    "no-space-for-results": "No space is left in {folder}.",
    "node-command-ended": "its command ended with exit code {exit_code}.",
}
VERSIONS = {  # of two versions that a gate compares
    "no-file-differs": "No tracked file differs between {reference} and the working tree: both "
    "sides are the same program.",
    "script-outside-repository": "{script} lies outside the repository: both sides run the same "
    "file.",
    "reference-elsewhere": "Without the overlay sandbox the reference ran in {folder}, with links "
    "to your untracked files.",
    "imports-unknown": "Which folders the reference's interpreter imports from is not known: an "
    "editable install of the working tree would be the new version's on both sides.",
    "installed-copy-loaded": "{path}[ (and {more:counted more file})] differs and was not loaded; "
    "the program loaded the installed {copy}, which is the same on both sides. If that is a copy "
    "of it, the change was not compared: install the working tree with pip install -e, or put it "
    "on PYTHONPATH.",
    "change-not-loaded": "No process of the program that was seen loaded a Python file that "
    "differs ({files:list}): both sides may be the same program.",
    "version-failed": "The program itself failed after at least {steps:counted step} (exit code "
    "{exit_code}); the steps before are compared.",
    "version-killed": "The program itself failed after at least {steps:counted step} (killed by "
    "signal {signal}); the steps before are compared.",
    "waits-in-one-order": "The wait for data was observed in one order only: {reason}",
    "versions-took-turns": "The launches took turns, because {why:fact}: that sees less in the "
    "same time.",
    "never-beside-each-other": "The two versions could not run side by side, so their launches "
    "took turns, which sees less in the same time: {why:fact}.",
    "new-broke-down": "The working tree's program broke down where that of the reference went on: "
    "{why:fact}.",
    "busy-while-observed": "Other programs kept {load} busy while the versions were observed: on a "
    "quiet machine the same time would show smaller differences.",
    "busy-then": "Other programs kept {load} busy when the stored launches were made: what they "
    "took is in the times.",
    "busy-now": "Other programs kept {load} busy now: what they took is in the times.",
    "another-time": "Compared with launches of another time: what else ran on the machine then and "
    "now is in the figures. A gate against a commit (--against) measures both side by side.",
    "long-steps-not-stored": "Some {units} take far longer now, and the stored launches hold their "
    "median {unit} alone: what the long ones take is not in the comparison.",
}
_OF_A_LAYER = {
    "folder": "{folder}",
    "size": "{size_bytes:binary}",
    "free": "{free_bytes:binary}",
    "files": "{files:counted file}",
    "named": "{named:list}",
}
LAYERS = {  # what the end of a launch has to do with, or why it has no layer
    ident: words.format(**_OF_A_LAYER) for ident, words in layer_words.WORDS.items()
}
ENDED = {  # of launches that gave nothing, and why
    "message": "{message}",
    "window-not-finished": "It did not finish its window in {wall_s:.0f} s.",
    "launch-interrupted": "Interrupted.",
    "ran-out-of-memory": "It ran out of memory.",
    "killed-for-memory": "It was killed, as the kernel does where memory runs out.",
    "ended-with-code": "The program ended with {exit_code:exit}[: {last_line}]",
    "stopped-unmeasured": "It was stopped before it was measured[: {last_line}]"
    "[. {layer:sentence}]",
    "ended-by-layer": "The program ended with {exit_code:exit}. {layer:sentence}",
    "program-failed": "The program failed.",
    "no-step-measured": "No step was measured.",
    "failed-after-launches": "{why:fact}, after {launches:counted launch, launches} without a "
    "failure.",
    "could-not-apply": "{fix} could not be applied: {why:fact}.",
    "could-not-apply-silently": "{fix} could not be applied: no reason given",
    "refused-silently": "{fix} refused to be applied.",
    "found-nothing": "{fix} found nothing to apply to.",
    "first-block-did-not-end": "its first block of steps did not end",
    "no-block-measured": "no block of steps was measured",
    "block-given-up": "A block of its steps did not end, so it was given up.",
    "warm-up-given-up": "Its warm-up did not end, so it was given up.",
    "block-hung-once": "a block of its steps did not end once",
    "warm-up-hung-once": "its warm-up did not end once",
    "pair-not-counted": "{why:fact}; that pair is not counted",
    "failed-beside-another": "started beside another launch it failed ({why:fact})",
    "budget-ended": "the budget ended",
    "no-pair-in-time": "no pair ended in time",
    "trials-stopped": "Trials stopped: {why:sentence}",
    "untouched-unmeasured-twice": "Trials stopped: the untouched program could not be measured "
    "twice in a row ({why:fact}).",
    "untouched-unmeasured": "The untouched program could not be measured ({why:fact}).",
}
IN_PROGRAM = {  # why a fix is not applied in the program, as what all fixes use tells it
    "raised": "{error}: {message}",
    "not-switched-off": "it could not be switched off: {why:fact}",
    "package-not-installed": "{package} is not installed in the program's environment.",
    "training-did-not-begin": "Training did not begin.",
    "model-not-on-cpu": "The model is not on the CPU.",
    "function-not-called": "The function was not called.",
    "is-a-generator": "{function} is a generator: no call returns its result.",
    "held-by-nobody": "The function {function} is held by no module or class.",
    "few-calls-repeat": "Only {of_calls:whole_percent} of these calls repeat an earlier one, so "
    "most of them run as before.",
    "changes-its-batches": "The program changes its batches in place.",
    "result-changed-in-place": "The program changes a result of these calls in place.",
    "results-too-large": "The results of these calls are too large to be kept.",
    "no-loader-made": "No DataLoader that it could change was made.",
    "no-loader-feeds-loop": "No loader feeds the training loop, so there can be no second one.",
    "loader-unchanged": "The fix changes nothing about the loader.",
    "nothing-shows-learning": "The program shows no backward pass or optimizer step after a batch.",
    "iterators-share-samples": "Two iterators over one IterableDataset would share its samples.",
    "own-way-of-batches": "{loader} hands out its batches in a way of its own.",
    "iterable-not-sharded": "{dataset} is an IterableDataset that was not seen to shard itself by "
    "worker.",
    "workers-not-forked": "The workers are not forked, or the program chose their multiprocessing "
    "context.",
    "dataset-changes-itself": "The data set changes itself ({attribute}) while it prepares a "
    "sample.",
    "several-processes-together": "Several processes train together.",
    "ready-batches-unknown": "It is not known how many batches lie ready ({error}).",
    "steps-take-other-batches": "Its steps take batches from elsewhere as well.",
    "too-few-batches-asked-for": "The training loop asks for too few batches.",
    "queue-not-refilled": "The second loader's workers did not fill its queue in {most_s:.0f} s.",
    "no-memory-for-state": "A copy of the training's state takes {copy_gb:.1f} GB, and beside a "
    "step {free_gb:.1f} are free.",
    "no-memory-for-workers": "{workers} more workers could take {needed_gb:.1f} GB of memory, and "
    "{free_gb:.1f} GB are free.",
    "no-shared-memory": "Batches of {ready_gb:.2f} GB would lie ready in shared memory, and "
    "{free_gb:.2f} GB are free.",
    "holds-generator": "The data set holds a random generator.",
    "draws-random-numbers": "The data set draws random numbers: samples may differ each time.",
    "each-sample-only-once": "The data set gives each sample only once.",
    "another-sample-at-once": "The same index gave another sample when it was asked for again.",
    "another-sample-later": "The same index gives another sample in another epoch.",
    "tensors-not-kept": "The samples are tensors with a gradient, on a device, or sparse.",
    "type-not-kept": "Its samples hold {type}, which is not kept.",
    "scales-gradients-itself": "The program scales gradients itself (GradScaler).",
    "backward-differentiated": "A backward pass is itself differentiated (create_graph).",
    "gradients-of-chosen-tensors": "A backward pass asks for the gradients of chosen tensors "
    "(inputs=).",
    "no-optimizer-to-hold-back": "There is no optimizer whose step could be left out on overflow.",
    "parameters-in-float16": "The model's own parameters are in float16: nothing can be unscaled.",
    "gradients-within-step": "The optimizer computes gradients within its step (closure).",
    "gradients-may-be-sparse": "Its gradients may be sparse.",
}
IN_TURNS = {  # why launches cannot run side by side
    "several-processes-train": "several processes train, whose collectives would have to stop at "
    "the same iteration",
    "ends-too-soon-for-blocks": "the program ends too soon for blocks of steps",
    "cycle-too-long-for-block": "its steps come in two kinds, and the cycle of the long ones is "
    "too long for a block",
    "epoch-too-long-for-block": "an epoch is too long for a block of steps",
    "steps-too-long-for-blocks": "steps are so long that blocks of them would cost more than "
    "launches",
    "no-memory-for-both": "this machine has no memory for both at the same time",
    "no-gpu-memory-for-both": "the GPU has no memory for both at the same time",
    "memory-for-both-not-sure": "memory for both at the same time, and for what a fix may need, is "
    "not sure",
    "gpu-takes-one-process": "the GPU takes one process at a time (compute mode EXCLUSIVE_PROCESS)",
    "files-read-anew": "files are read from the disk anew by each",
    "both-write-same-files": "without the sandbox both would write to the same files",
}
_NOT_AMONG = "not among the untouched program's"
_DATA = "[; {data:fact}]"
_FIRST_APART = "The first {first} losses differ by at most {apart:.0e} (relative), "
_NO_DRIFT = f"and later ones do not drift apart{_DATA}."
_TELL_NOISE = "The losses differ by more than rounding; to tell whether by more than noise, "
_OF_RUNS = f"those of the {{runs}} runs of the untouched program{_DATA}."
_DEVIATIONS = "{deviations:.0f} standard deviations"
_LATER = "The later losses are {deviations:.1f} standard deviations"
_OUTPUTS_APART = "{outputs} outputs differ by at most {apart:.0e} (relative)"
_DECISIONS = "[; {decisions:fact}]"
SAMPLES = {  # whether a fix trains on the same samples
    "samples-same": "the same {samples} samples in the same order",
    "samples-reordered": "the same {samples} samples in another order",
    "samples-reordered-by-design": "another order by design: {shared} of the first {samples} "
    "samples are among the untouched program's first",
    "samples-repeated": "{repeated} of the first {samples} samples are repeated",
    "samples-repeated-more": "{repeated} of the first {samples} samples are repeated, at most "
    "{usual} in the untouched program",
    "samples-in-place-of-others": "{extra} of the first {samples} samples come in place of others",
    "samples-foreign": f"{{foreign}} of the first {{samples}} samples are {_NOT_AMONG}",
    "samples-vary": "the program's own samples differ from run to run",
    "inputs-repeated": "{repeated} of the first {samples} inputs are repeated under other labels",
    "inputs-differ": "labels in the same order, inputs differ",
    "inputs-differ-by-augmentation": "labels in the same order, inputs differ (random augmentation "
    "in workers is seeded differently)",
    "inputs-differ-in-workers": "labels in the same order, inputs differ (random augmentation, or "
    "state that the dataset keeps, differs in workers)",
    "inputs-differ-by-state": "labels in the same order, inputs differ, though preparing them "
    "draws nothing from the random generators of torch, NumPy and Python: samples are no function "
    "of their index, the dataset or what it calls keeps state that workers do not share",
}
LOSSES = {  # whether training stayed the same
    "no-launch-compared": "no launch of it was measured.",
    "data-changed": "The data changed: {data:fact}.",
    "loss-turned-not-finite": "Loss {number} is {loss}, the untouched program's are finite.",
    "other-backwards": "{backwards:.2g} backward passes in a step, {untouched:.2g} in the "
    "untouched program.",
    "no-losses-of-both": "no losses of both to compare, at least {fewest} are needed.",
    "too-few-losses": "{losses} losses of both to compare, at least {fewest} are needed.",
    "losses-identical": f"All {{losses}} losses agree bit by bit{_DATA}.",
    "update-differs": "The first loss agrees, the second, after one update, differs by "
    f"{{apart:.2%}}{_DATA}: the update is another one.",
    "first-losses-identical": f"The first {{first}} losses are the same, {_NO_DRIFT}",
    "losses-apart-by-rounding": f"{_FIRST_APART}as rounding makes them, {_NO_DRIFT}",
    "losses-apart-by-precision": f"{_FIRST_APART}as lower precision makes them, {_NO_DRIFT}",
    "losses-apart-as-two-runs": f"{_FIRST_APART}no more than two runs of the untouched program do "
    f"with one seed{_DATA}.",
    "too-few-losses-for-noise": f"{_TELL_NOISE}there are too few losses{_DATA}.",
    "other-seeds-alike": f"{_TELL_NOISE}other seeds change too little{_DATA}.",
    "other-seeds-not-launched": f"{_TELL_NOISE}no other seeds were launched{_DATA}.",
    "losses-above": f"Losses {{first}} to {{last}} are {_DEVIATIONS} above {_OF_RUNS}",
    "losses-below": f"Losses {{first}} to {{last}} are {_DEVIATIONS} below {_OF_RUNS}",
    "later-losses-above": f"{_LATER} above {_OF_RUNS}",
    "later-losses-below": f"{_LATER} below {_OF_RUNS}",
    "losses-within-seeds": "The losses differ from the untouched program's no more than those of "
    f"{{runs}} of its own runs with different seeds{_DATA}.",
}
OUTPUTS = {  # whether a program that infers still gives the same
    "no-outputs-of-both": "no outputs of both to compare, at least {fewest} are needed.",
    "too-few-outputs": "{outputs} outputs of both to compare, at least {fewest} are needed.",
    "outputs-identical": "All {outputs} outputs agree bit by bit.",
    "outputs-corrected": f"The outputs were wrong, and change: {_OUTPUTS_APART}.",
    "outputs-differ": f"The outputs change: {_OUTPUTS_APART}{_DECISIONS}.",
    "outputs-apart": f"The {_OUTPUTS_APART}{_DECISIONS}.",
    "outputs-apart-by-rounding": f"The {_OUTPUTS_APART}, as rounding makes them{_DECISIONS}.",
    "outputs-apart-by-precision": f"The {_OUTPUTS_APART}, as lower precision makes them"
    f"{_DECISIONS}.",
    "decisions-same": "{decided:,} of {decided:,} decisions are the same",
    "decisions-partly-same": "{same:,} of {decided:,} decisions are the same "
    "({examples:each altered-decision})",
    "decisions-altered": "{altered:,} of {decided:,} decisions are other ones "
    "({examples:each altered-decision}).",
    "altered-decision": "output {output}: {after} in place of {before}",
}
_STEP_TIME = "[; a step takes {step_time:interval} as long]"
_LAST_LOSSES = (
    "loss in the last third of {steps} steps {with_fix:.4g} with it, {without:.4g} without, over "
    "the same samples ({pairs:counted seed}"
)
_WITH_SPREAD = f"{_LAST_LOSSES}, which alone spread it by {{spread:.2g}})"
_BY = f"by {{by:.2g}} (95 % interval {{low:.2g}} to {{high:.2g}}){_STEP_TIME}."
PAIRS = {  # of advice on training
    "samples-of-pair-differ": "the launches did not see the same samples.",
    "losses-not-single-numbers": "there are no losses to compare: not every backward begins at a "
    "single number.",
    "too-few-losses-of-pair": "{losses} losses to compare, at least {fewest} are needed.",
    "losses-of-pairs-identical": "the losses of {steps} steps are the same bit by bit "
    f"({{pairs:counted seed}}){_STEP_TIME}.",
    "loss-of-one-seed": f"{_LAST_LOSSES}): one seed says nothing of the noise{_STEP_TIME}.",
    "loss-without-spread": f"{_WITH_SPREAD}: other seeds do not change this program's losses, so "
    f"its noise is not known{_STEP_TIME}.",
    "loss-of-few-pairs": f"{_WITH_SPREAD}: fewer than {{fewest}} pairs show no difference, and "
    f"rule out none{_STEP_TIME}.",
    "loss-no-difference": f"{_WITH_SPREAD}: shows no difference{_STEP_TIME}.",
    "loss-lower": f"{_WITH_SPREAD}: lower {_BY}",
    "loss-higher": f"{_WITH_SPREAD}: higher {_BY}",
    "loss-finite-with-it": "loss {number} is not finite without it; with it all of {steps} steps "
    f"are{_STEP_TIME}.",
    "loss-finite-without-it": "loss {number} is not finite with it; without it all of {steps} "
    f"steps are{_STEP_TIME}.",
    "loss-finite-with-neither": "loss {without} is not finite without it, nor is loss {with_fix} "
    f"with it{_STEP_TIME}.",
}
NUMERICS = {**SAMPLES, **LOSSES, **OUTPUTS, **PAIRS}
NO_GPU_EVENTS = frozenset({"no-gpu-events", "no-gpu-events-in-part"})
UNWRITTEN_REPORT = frozenset({"report-unwritten", "report-in-the-way"})
SENTENCES = {
    **REMARKS,
    **TRACES,
    **RANKS,
    **FIXES,
    **RUNS,
    **LAUNCHES,
    **NODES,
    **VERSIONS,
    **LAYERS,
    **ENDED,
    **IN_PROGRAM,
    **IN_TURNS,
    **NUMERICS,
}


def filled(remark: Remark, template: str, words: Mapping[str, str], cwd: str = "") -> Remark:
    """Return a remark with its sentence, which begins with what it is of."""
    sentence = templates.filled(template, {**words, **remark.values}, SENTENCES, cwd)
    return replace(remark, sentence=f"{remark.of}: {sentence}" if remark.of else sentence)


def sentence(doubt: Evidence) -> str:
    """Return a doubt in words, where there is no report yet."""
    return filled(as_remark(doubt), SENTENCES[doubt.fact], of_unit("step")).sentence
