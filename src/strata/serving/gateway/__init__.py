"""The gateway: OpenAI-compatible requests in, attempts on nodes out; one `live.core.Core` a model decides.

A request takes these forms on its way. `openai.parse` reads JSON into a `GenerationRequest`. The model's
`BackendClient` (`workers` or `engines`) admits it: a `RequestSignal` is all that the scheduler sees of it.
`Driver` joins both in a `RequestStream`, which attempts write and `GenerationResponse` reads, and posts `Arrive`
to the core. The core keeps its own `InFlightRequest` and answers with `Dispatch`; the driver runs that as one
attempt, to a worker as a `GenerateMessage`, to an engine as the JSON that came. How it ended (`AttemptResult`)
goes back to the core as an event; an attempt that broke off is dispatched again.

`app` has the endpoints, `nodes` those of workers, `discovery` watches engines, `build` puts it together.
"""
