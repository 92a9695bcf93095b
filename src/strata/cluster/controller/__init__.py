"""The controller: it starts jobs that wait where there is room, takes broken nodes out, and moves their gangs.

`process` runs two threads over one cache: `manager` hears and heals in one, and schedules in the other.
`controller` is the scheduling cycle; `pending` says who waits, `status_writer` what is written about a decision,
and `reschedule` whose place was lost. `healing` decides which nodes leave and return; `checkpoint` finds what a
job resumes from.
"""
