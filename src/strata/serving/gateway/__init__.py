"""The gateway: OpenAI-compatible requests in, attempts on nodes out; one `live.core.Core` a model decides.

A request has three forms. What a client sent, checked, is a `GenerationRequest` (`openai`). The model's
`BackendClient` (`workers` or `engines`) admits it: a `RequestSignal` is all that the scheduler sees of it. A
worker gets a `GenerateMessage`, an engine the JSON that came. Two objects keep how far it is: the `RequestStream`
here, which attempts write and `GenerationResponse` reads, and the core's own `InFlightRequest`.

`Driver` posts what happens to the core as events and runs each `Dispatch` as one attempt; how that ended
(`AttemptResult`) is the next event, and an attempt that broke off is dispatched again.

`app` has the endpoints, `nodes` those of workers, `discovery` watches engines, `build` puts it together.
"""
