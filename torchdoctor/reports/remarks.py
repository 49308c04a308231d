"""The sentences of remarks and of doubts about traces, by the names of their facts."""

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
NO_GPU_EVENTS = frozenset({"no-gpu-events", "no-gpu-events-in-part"})
SENTENCES = {**REMARKS, **TRACES, **RANKS}
