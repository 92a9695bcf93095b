"""Of one host: who waited for a CPU and why, and what trying a policy came to."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

HOST: Final[Meanings] = {
    "cpu-wait": Meaning(
        "runnable but not running {share:.1%} of the time; {culprit} held the CPU for {culprit_share:.0%} of that",
        "The thread was ready to run, but others held the CPU. While it waits, the accelerator it feeds runs dry.",
        "Give it CPUs of its own (cpuset), or a higher weight (nice, cpu.weight) than the culprit's: strata host "
        "layers writes such a policy.",
    ),
    "gpu-idle-cpu-wait": Meaning(
        "for {share:.0%} of the accelerator's idle time its launching thread waited for a CPU that {culprit} held",
        "No kernel ran because the thread that would have launched one had no CPU.",
        "Give the launching thread CPUs of its own (cpuset), near its accelerator: strata host layers does.",
    ),
    "launcher-unknown": Meaning(
        "the launching threads in the profile ({threads}) do not appear in the scheduler trace",
        "So the accelerator's idle time cannot be explained. Thread ids in a container differ from the host's.",
        "Profile and record on the same host at the same time; in a container, with the host's ids (hostPID).",
    ),
    "cpu-preempted": Meaning(
        "preempted {times} times in the middle of its work, mostly by {culprit}",
        "The kernel ran another thread although this one had work to do; its caches are cold when it returns.",
        "Lower the culprit's weight (nice 19, cpu.idle), or keep it off these CPUs (cpuset).",
    ),
    "irq-time": Meaning(
        "{culprit} and other interrupts took {cost:.1f} ms of its CPU",
        "Interrupt handlers run on top of the current thread and do not show up in its CPU time.",
        "Move the interrupt off the CPUs of critical threads (/proc/irq/N/smp_affinity_list, irqbalance bans; "
        "rps_cpus for packets).",
    ),
    "steal-time": Meaning(
        "the hypervisor gave {share:.1%} of the CPUs' time to others, about {cost:.1f} ms of this thread's",
        "A virtual CPU stands still while the hypervisor runs another one; no policy inside the guest helps.",
        "Ask the host's operator for CPUs that are not shared (dedicated host, pinned vCPUs), or for fewer vCPUs.",
    ),
    "cpu-throttled": Meaning(
        "kept off an idle CPU {times} times, for {cost:.1f} ms in total, although it was runnable",
        "Its cgroup has used up its quota for the period (cpu.max): all its threads stop until the next one.",
        "Raise or remove the limit (cpu.max; limits.cpu in Kubernetes). To confirm: nr_throttled in the cgroup's "
        "cpu.stat grows. A weight (cpu.weight) limits a group only while CPUs are contended.",
    ),
    "crosses-numa": Meaning(
        "migrated to another NUMA node {times} times ({rate:.1f} a second)",
        "Its memory stays behind: each access crosses the sockets until the pages follow.",
        "Pin it to the CPUs of its accelerator's node (numactl, cpuset.cpus and cpuset.mems).",
    ),
    "crosses-llc": Meaning(
        "migrated to another last-level cache {times} times ({rate:.1f} a second)",
        "Its working set has to be read from memory again.",
        "Pin it to the CPUs of one last-level cache, or reserve those CPUs for it.",
    ),
    "yields-away": Meaning(
        "gave up its CPU by sched_yield {times} times, mostly to {culprit}",
        "A thread that spins on sched_yield lets every other thread of its weight run first.",
        "Stop it from yielding (OpenMP: OMP_WAIT_POLICY=active; communication proxies), or raise its weight.",
    ),
    "yield-storm": Meaning(
        "{culprit} calls sched_yield {rate:,.0f} times a second on the same machine",
        "Threads that wait by yielding keep their CPUs busy with context switches alone.",
        "Make the culprit block instead (OMP_WAIT_POLICY=passive), or keep it off these CPUs.",
    ),
    "oversubscription": Meaning(
        "{threads} threads of {pool} are runnable at once on {cpus} CPUs",
        "With more runnable threads than CPUs, they wait for each other and delay everyone else.",
        "Make the pool smaller (OMP_NUM_THREADS, num_workers), start fewer processes, or give them fewer CPUs.",
    ),
    "fork-storm": Meaning(
        "{culprit} starts {rate:,.0f} threads a second on the same machine",
        "Each new thread needs a CPU at once, with cold caches, and the kernel is busy starting them.",
        "Reuse processes instead of starting new ones, or give the culprit CPUs of its own.",
    ),
    "pin-conflict": Meaning(
        "appears pinned to CPU {cpu}, like {culprit}",
        "A thread that may run on one CPU only has to wait for it, however many others are idle.",
        "Remove one of the pins (taskset -p, OMP_PROC_BIND, cpuset), or pin to different CPUs.",
    ),
    "idle-cpu-beside": Meaning(
        "waited {cost:.1f} ms behind {culprit} while another CPU was idle",
        "The kernel did not migrate it: because of a pin, a cpuset, or to keep it near its cache or NUMA node.",
        "Widen its affinity (taskset, cpuset); if it has none, there is nothing to do.",
    ),
    "frequency-drop": Meaning(
        "ran at {mean:.2f} GHz, while up to {highest:.2f} GHz was reached",
        "The CPU was clocked down: by a governor that follows load, by heat, or by wide vector instructions.",
        "Set the performance governor or a floor (scaling_min_freq) on the CPUs of critical threads.",
    ),
    "straggler": Meaning(
        "waits longest of the {ranks} {pool} threads: {beyond:.1%} of the time more than its peers",
        "At the next collective, all ranks wait for the slowest.",
        "Give every rank the same number of CPUs, none of them shared with the culprit.",
    ),
    "waker-waits": Meaning(
        "slept {cost:.1f} ms longer because {waker}, which wakes it, waited for {culprit}",
        "A chain of threads (a lock; transforms, loaders, trainer) is as slow as its slowest link.",
        "Raise the waker's weight as well: it is on the critical path.",
    ),
    "thread-starved": Meaning(
        "runnable but not running for {longest:.1f} s at a stretch",
        "A fair scheduler does not let a thread wait this long; real-time threads or limits (cpu.max) do.",
        "Look for SCHED_FIFO threads and for cpu.max in its cgroup.",
    ),
    "trace-lost": Meaning(
        "{lost:,} events ({share:.1%}) were lost while recording",
        "The buffer was full: waits that span a loss are wrong, and culprits may be missing.",
        "Record with larger buffers (-m) or for a shorter time.",
    ),
    "trace-clock-back": Meaning(
        "the clock went backwards {times} times",
        "Events of one CPU are not in time order; waits across such a point are wrong.",
        "Record with one clock for all CPUs (perf record -k mono, trace_clock mono).",
    ),
    "trace-damaged": Meaning(
        "{lines:,} lines are not events",
        "Parts of the file are not a trace, or are in an unknown format.",
        "Print it again: perf script -F comm,pid,tid,cpu,time,event,trace --ns.",
    ),
    "trace-truncated": Meaning(
        "the file ends early: only its first {seconds:.1f} s can be read",
        "Its compressed data end early or are damaged: recording or copying was interrupted.",
        "Copy the file again, or record again; Ctrl-C ends strata host record cleanly.",
    ),
    "trace-cut": Meaning(
        "only the first {events:,} events were read",
        "The trace is larger than what is kept in memory.",
        "Record for a shorter time, or cut the trace (perf script --time).",
    ),
    "nothing-critical": Meaning(
        "no thread is named {asked}, so no thread counts as critical",
        "Findings are about critical threads, and none was recognised by its name.",
        "Name yours: strata host report TRACE --critical PREFIX.",
    ),
    "no-cpu": Meaning(
        "none of its CPUs ({asked}) is online",
        "A thread, cgroup or interrupt needs at least one CPU; the kernel would refuse the step, or use all CPUs.",
        "Name CPUs that are online (/sys/devices/system/cpu/online); generate the policy again on this machine.",
    ),
    "no-memory": Meaning(
        "no NUMA node of {asked} has memory",
        "Threads confined to it could not allocate memory.",
        "Name nodes of /sys/devices/system/node/has_memory.",
    ),
    "no-weight": Meaning(
        "weight 0 leaves no share of the CPUs",
        "A cgroup's share of the CPUs is its weight among its neighbours'; the kernel takes 1 to 10000.",
        "Use 1 or more; a weight of 10 already yields to almost everyone.",
    ),
    "no-bandwidth": Meaning(
        "{percent} % of the memory bandwidth would stall its threads",
        "Below 10 %, the hardware delays requests so long that threads hardly run.",
        "Use 10 or more.",
    ),
    "system-idle": Meaning(
        "daemons and shells in {group} would run only while everything else sleeps",
        "A cgroup with cpu.idle runs only when nothing else is runnable: nobody could log in and stop it.",
        "Give the cgroup a low cpu.weight instead.",
    ),
    "user-idle": Meaning(
        "all processes of user {user} would run only while everyone else's sleep",
        "A user whose processes are all in cgroups with cpu.idle gets no CPU while the machine is busy.",
        "Give one of the cgroups a cpu.weight of 10 instead.",
    ),
    "rollout-noise-first": Meaning(
        "{pairs} of {wanted} A/A pairs: the noise floor is not known yet",
        "A change means nothing until it is known how much two attempts under the same policy differ.",
        "Continue: all attempts run the baseline, and count towards the noise floor.",
    ),
    "rollout-running": Meaning(
        "{change:+.1%} after {pairs} A/B pairs: not yet distinguishable from noise",
        "The anytime-valid confidence interval still includes zero.",
        "Continue, or include more jobs (strata host rollout change --share).",
    ),
    "rollout-better": Meaning(
        "the candidate is better: {change:+.1%} over {pairs} pairs",
        "The change is above the noise, however often the results were inspected.",
        "Make the candidate the policy of all jobs.",
    ),
    "rollout-worse": Meaning(
        "the candidate is worse: {change:+.1%} over {pairs} pairs",
        "The change is a significant loss. From now on all attempts run the baseline.",
        "Record a trace under each policy (strata host record) and compare the reports.",
    ),
    "rollout-crashes": Meaning(
        "in {candidate} pairs only the candidate's attempt failed, in {baseline} only the baseline's",
        "If both failed equally often, so uneven a count would be very unlikely. All attempts run the baseline.",
        "Read the logs of the failed attempts before trying again.",
    ),
    "rollout-jobs-worse": Meaning(
        "{jobs} of {of} jobs lost more than the guard allows, twice in a row",
        "The mean may be fine, but some jobs lose badly. All attempts run the baseline.",
        "Opt these jobs out, or fix the policy for them; then begin a new roll-out.",
    ),
    "rollout-no-difference": Meaning(
        "the policies differ by less than 1%, over {pairs} pairs",
        "The confidence interval of the change lies within ±1%.",
        "Keep the baseline: it is simpler.",
    ),
    "rollout-undecided": Meaning(
        "{change:+.1%} after all {pairs} pairs: still within the noise",
        "All planned pairs are used up, and the change is smaller than they can detect.",
        "Keep the baseline, or begin a roll-out with more pairs.",
    ),
    "rollout-stopped": Meaning(
        "stopped by hand",
        "Someone ended the roll-out: all attempts run the baseline.",
        "No action is needed; begin a new roll-out to try again.",
    ),
    "rollout-opted-out": Meaning(
        "opted out by {rule}",
        "A rule keeps this job on the baseline; opting out takes precedence over opting in.",
        "No action is needed.",
    ),
    "rollout-not-opted-in": Meaning(
        "no rule opts it in",
        "The roll-out is limited to jobs that opted in.",
        "Opt it in: strata host rollout change NAME --opt-in job=....",
    ),
    "rollout-outside-share": Meaning(
        "not among the {share:.0%} of jobs that take part",
        "A hash of the job's name decides; a job included at one share is included at every larger one.",
        "Raise the share: strata host rollout change NAME --share.",
    ),
    "rollout-job-back": Meaning(
        "back on the baseline: it lost more than {guard:.0%}, twice in a row",
        "The guard rolls back single jobs while the others continue.",
        "Record a trace of it under each policy and compare the reports.",
    ),
    "rollout-turn": Meaning(
        "attempt {number}: the {policy} is next in its pair",
        "The two attempts of a pair run one policy each, in random order.",
        "No action is needed.",
    ),
}  # fmt: skip
