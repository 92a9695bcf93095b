// Asks a gateway through OpenAI's library for Node: `node ask_openai.mjs FOLDER-OF-NODE-MODULES URL`
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [modules, url] = process.argv.slice(2);
const OpenAI = createRequire(modules + "/")("openai");
const alice = new OpenAI({ baseURL: url + "/v1", apiKey: "alice", maxRetries: 0 });
const asked = { model: "llama", messages: [{ role: "user", content: "once upon a time" }], max_tokens: 12, temperature: 0 };

const models = [];
for await (const model of alice.models.list()) models.push(model.id);
assert.deepEqual(models, ["llama"]);

const said = await alice.chat.completions.create(asked);
const text = said.choices[0].message.content;
assert.equal(said.usage.completion_tokens, 12);
assert.ok(said.id.endsWith(said._request_id));

let streamed = "";
let usage;
for await (const chunk of await alice.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, 12);

const left = await alice.chat.completions.create({ ...asked, max_tokens: 1500, stream: true });
for await (const _ of left) break;

const answer = await alice.responses.create({ model: "llama", input: "once", max_output_tokens: 5 });
assert.ok(answer.output_text);

await assert.rejects(alice.chat.completions.create({ ...asked, model: "other" }), (error) => {
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, "model_not_found");
  return true;
});
await assert.rejects(alice.chat.completions.create({ ...asked, temperature: 3 }), OpenAI.BadRequestError);
console.log("all is well");
