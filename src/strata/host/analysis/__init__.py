"""What a trace says: from columns of events to findings, a verdict and a picture.

`view.TraceView` builds what the detectors share, each step from the one before: task instances (a thread id
from its birth to its death), on-CPU intervals, interrupts, run-queue delays, and the attribution of every
delay to whoever held the CPU meanwhile. `findings` looks at that view, one function a detector; `report`
ranks what they find, adds the verdict and the JSON form; `page` draws it. Pure functions of the trace: only
`kineto` and `nsys` read files."""
