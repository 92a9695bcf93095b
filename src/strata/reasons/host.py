"""Of one host: who waited for a CPU and why, and what trying a policy came to."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

HOST: Final[Meanings] = {
    "cpu-wait": Meaning(
        "waited for a CPU {share:.1%} of the time; {culprit} had it for {culprit_share:.0%} of that",
        "The thread could run, but others had the CPU. While it waits, the accelerator that it feeds runs dry.",
        "Give it CPUs of its own (cpuset), or a higher weight (nice, cpu.weight) than the culprit's: strata host "
        "layers writes such a policy.",
    ),
    "gpu-idle-cpu-wait": Meaning(
        "{share:.0%} of the accelerator's idle time is this launching thread waiting for a CPU; {culprit} had it",
        "No kernel ran, since the thread that would have launched one had no CPU.",
        "Give the launching thread CPUs of its own (cpuset), near its accelerator: strata host layers does.",
    ),
    "launcher-unknown": Meaning(
        "the profiler's launching threads ({threads}) are not in the scheduler's trace",
        "Why the accelerator stood idle cannot be told. In a container ids of threads are not those of the host.",
        "Profile and record on the same host at the same time; in a container, with the host's ids (hostPID).",
    ),
    "cpu-preempted": Meaning(
        "taken off its CPU {times} times in the middle of its work, for {culprit} above all",
        "The kernel let another thread run although this one had work; its caches are cold when it is back.",
        "Lower the culprit's weight (nice 19, cpu.idle), or keep it off these CPUs (cpuset).",
    ),
    "irq-time": Meaning(
        "{culprit} and other interrupts took {cost:.1f} ms of its CPU",
        "Interrupt handlers run on top of whatever thread is there, and do not show in its CPU time.",
        "Move the interrupt off the CPUs of critical threads (/proc/irq/N/smp_affinity_list, irqbalance bans; "
        "rps_cpus for packets).",
    ),
    "steal-time": Meaning(
        "the hypervisor gave {share:.1%} of the CPUs' time to others, about {cost:.1f} ms of this thread's",
        "A virtual machine's CPU stands still while the hypervisor runs another on it; no policy in here helps.",
        "Ask who runs the host for CPUs that are not shared (a dedicated host, pinned vCPUs), or for fewer vCPUs.",
    ),
    "cpu-throttled": Meaning(
        "kept off an idle CPU {times} times, {cost:.1f} ms in all, though it could run",
        "Its cgroup has used up its share of the period (cpu.max): all threads in it stop until the next begins.",
        "Raise or remove the limit (cpu.max; limits.cpu in Kubernetes); if it is this, nr_throttled in the "
        "cgroup's cpu.stat grows. A weight (cpu.weight) holds back only where there is not enough for all.",
    ),
    "crosses-numa": Meaning(
        "moved to another NUMA node {times} times ({rate:.1f} a second)",
        "Its memory stays behind: each access crosses the sockets until the pages follow.",
        "Pin it to the CPUs of its accelerator's node (numactl, cpuset.cpus and cpuset.mems).",
    ),
    "crosses-llc": Meaning(
        "moved to another last-level cache {times} times ({rate:.1f} a second)",
        "What it keeps at hand about its tensors has to be read from memory again.",
        "Pin it to the CPUs of one last-level cache, or give them to it alone.",
    ),
    "yields-away": Meaning(
        "gave its CPU away by sched_yield {times} times, to {culprit}",
        "A thread that spins with sched_yield lets all others of its weight run first.",
        "Find who yields (OpenMP: OMP_WAIT_POLICY=active; communication proxies), or raise its weight.",
    ),
    "yield-storm": Meaning(
        "{culprit} calls sched_yield {rate:,.0f} times a second beside it",
        "Threads that wait by yielding keep their CPU busy with nothing but switches.",
        "Make the culprit block instead (OMP_WAIT_POLICY=passive), or keep it off these CPUs.",
    ),
    "oversubscription": Meaning(
        "{threads} threads of {pool} want to run at once on {cpus} CPUs",
        "More threads than CPUs only wait for each other, and for everyone else.",
        "Make the pool smaller (OMP_NUM_THREADS, num_workers), start fewer processes, or give them fewer CPUs.",
    ),
    "fork-storm": Meaning(
        "{culprit} starts {rate:,.0f} threads a second beside it",
        "Each new thread wants a CPU at once, with cold caches; the kernel is busy with starting them.",
        "Keep the processes and reuse them, or give the culprit CPUs of its own.",
    ),
    "pin-conflict": Meaning(
        "shares CPU {cpu}, to which both seem to be pinned, with {culprit}",
        "A thread that may run on one CPU only waits there, however many others are idle.",
        "Remove one of the pins (taskset -p, OMP_PROC_BIND, cpuset), or pin to different CPUs.",
    ),
    "idle-cpu-beside": Meaning(
        "waited {cost:.1f} ms for {culprit} while another CPU was idle",
        "The kernel did not move it: a pin, a cpuset, or a cache or node that it did not want to leave.",
        "Widen its affinity (taskset, cpuset); if it has none, nothing to do.",
    ),
    "frequency-drop": Meaning(
        "ran at {mean:.2f} GHz where {highest:.2f} GHz were reached",
        "The CPU was clocked down: a governor that follows load, heat, or wide vector instructions.",
        "Set the performance governor or a floor (scaling_min_freq) on the CPUs of critical threads.",
    ),
    "straggler": Meaning(
        "of {ranks} threads {pool} it waits most: {beyond:.1%} of the time more than its like",
        "At the next collective all ranks wait for the slowest.",
        "Give every rank the same room: the same number of CPUs, none of them with the culprit.",
    ),
    "waker-waits": Meaning(
        "slept {cost:.1f} ms longer since {waker}, which wakes it, waited for {culprit}",
        "A chain of threads (a lock; transforms, loaders, trainer) is as slow as its slowest wait.",
        "Raise the waker's weight as well: it is on the critical path.",
    ),
    "thread-starved": Meaning(
        "waited {longest:.1f} s at a stretch and could have run",
        "No fair scheduler lets a thread wait so long: real-time threads or limits (cpu.max) do.",
        "Look for SCHED_FIFO threads and for cpu.max in its cgroup.",
    ),
    "trace-lost": Meaning(
        "{lost:,} events ({share:.1%}) were lost in recording",
        "The buffer was full: waits that span a loss are wrong, and culprits may be missing.",
        "Record with larger buffers (-m) or for a shorter time.",
    ),
    "trace-clock-back": Meaning(
        "the clock went back {times} times",
        "Events of one CPU are not in the order of their times; waits across such a place are wrong.",
        "Record with one clock for all CPUs (perf record -k mono, trace_clock mono).",
    ),
    "trace-damaged": Meaning(
        "{lines:,} lines are no events",
        "The file is no trace throughout, or in a form that is not known.",
        "Print it again: perf script -F comm,pid,tid,cpu,time,event,trace --ns.",
    ),
    "trace-truncated": Meaning(
        "the file ends early: only its first {seconds:.1f} s can be read",
        "Its compressed data break off or are damaged: whoever recorded or copied it was stopped half-way.",
        "Copy the file again, or record again; Ctrl-C ends strata host record well.",
    ),
    "trace-cut": Meaning(
        "only the first {events:,} events were read",
        "The trace is larger than what is kept in memory.",
        "Record for a shorter time, or cut the trace (perf script --time).",
    ),
    "nothing-critical": Meaning(
        "no thread is named {asked}: nothing is known to hold up an accelerator",
        "Findings are about critical threads, and none was recognised by its name.",
        "Name yours: strata host report TRACE --critical PREFIX.",
    ),
    "no-cpu": Meaning(
        "none of its CPUs ({asked}) is online",
        "A thread, a cgroup or an interrupt must have a CPU; the kernel would refuse it, or give it all.",
        "Name CPUs that are online (/sys/devices/system/cpu/online); write the policy anew on this machine.",
    ),
    "no-memory": Meaning(
        "no NUMA node of {asked} has memory",
        "What runs there could allocate nothing.",
        "Name nodes of /sys/devices/system/node/has_memory.",
    ),
    "no-weight": Meaning(
        "weight 0 is no share at all",
        "A cgroup's share of the CPUs is its weight among its neighbours'; the kernel takes 1 to 10000.",
        "Give 1 or more; 10 yields to almost everyone.",
    ),
    "no-bandwidth": Meaning(
        "{percent} % of the memory bandwidth stalls its threads",
        "Below 10 % the hardware holds requests back so long that threads hardly run.",
        "Give 10 or more.",
    ),
    "system-idle": Meaning(
        "daemons and shells in {group} would wait until all else sleeps",
        "A cgroup with cpu.idle runs only when nobody else wants to: nobody could log in and stop it.",
        "Give the cgroup a low cpu.weight instead.",
    ),
    "user-idle": Meaning(
        "all processes of user {user} would wait until everyone else sleeps",
        "Whoever has all processes in cgroups with cpu.idle gets no CPU while the machine is busy.",
        "Give one of the cgroups a cpu.weight of 10 instead.",
    ),
    "rollout-noise-first": Meaning(
        "{pairs} of {wanted} A/A pairs: how far equal policies differ is not known yet",
        "A change means nothing before it is known how much two attempts differ that ran alike.",
        "Go on: all attempts run the baseline, and count.",
    ),
    "rollout-running": Meaning(
        "{change:+.1%} after {pairs} A/B pairs: not enough to tell it from noise",
        "The interval that may be looked at any time still holds no change.",
        "Go on, or let more jobs in (strata host rollout change --share).",
    ),
    "rollout-better": Meaning(
        "the candidate is better: {change:+.1%} over {pairs} pairs",
        "The change is above the noise, however often it was looked at.",
        "Make the candidate the policy of all jobs.",
    ),
    "rollout-worse": Meaning(
        "the candidate is worse: {change:+.1%} over {pairs} pairs",
        "The change is below the noise. From now on all attempts run the baseline.",
        "Record a trace under each policy (strata host record) and compare the reports.",
    ),
    "rollout-crashes": Meaning(
        "{candidate} attempts failed under the candidate where the baseline went on, {baseline} the other way",
        "If both failed alike, so uneven a count would be very unlikely. All attempts run the baseline.",
        "Look at the logs of the attempts that failed before it is tried again.",
    ),
    "rollout-jobs-worse": Meaning(
        "{jobs} of {of} jobs lost more than the guard allows twice in a row",
        "The mean may be fine, but some jobs suffer badly. All attempts run the baseline.",
        "Opt these jobs out, or mend the policy for them; then begin a new roll-out.",
    ),
    "rollout-no-difference": Meaning(
        "less than 1% between the policies, over {pairs} pairs",
        "The interval of the change lies within 1% of none.",
        "Keep the baseline: it is simpler.",
    ),
    "rollout-undecided": Meaning(
        "{change:+.1%} after all {pairs} pairs: still within noise",
        "The pairs that were planned are used up, and the change was smaller than they can show.",
        "Keep the baseline, or begin a roll-out with more pairs.",
    ),
    "rollout-stopped": Meaning(
        "stopped by hand",
        "Someone ended the roll-out: all attempts run the baseline.",
        "Nothing to do; begin a new roll-out to try again.",
    ),
    "rollout-opted-out": Meaning(
        "opted out by {rule}",
        "A rule keeps this job on the baseline; opting out wins over opting in.",
        "Nothing to do.",
    ),
    "rollout-not-opted-in": Meaning(
        "no rule opts it in",
        "The roll-out is for those who opted in.",
        "Opt it in: strata host rollout change NAME --opt-in job=....",
    ),
    "rollout-outside-share": Meaning(
        "not among the {share:.0%} of jobs that take part",
        "A hash of the job's name says who is in; who is in at one share is in at every larger one.",
        "Raise the share: strata host rollout change NAME --share.",
    ),
    "rollout-job-back": Meaning(
        "back on the baseline: it lost more than {guard:.0%} twice in a row",
        "The guard takes single jobs back while others go on.",
        "Record a trace of it under each policy and compare the reports.",
    ),
    "rollout-turn": Meaning(
        "attempt {number} of a pair: the turn of the {policy}",
        "The two attempts of a pair get one policy each, in an order drawn by lot.",
        "Nothing to do.",
    ),
}  # fmt: skip
