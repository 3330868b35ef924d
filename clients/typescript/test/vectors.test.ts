import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { InvalidMessage, Verifier } from "../dist/index.js";
import { serve, type Served } from "./server.js";

interface Vector {
  name: string;
  secrets: string[];
  keys: { keys: unknown[] } | null;
  origin: string;
  method: string;
  url: string;
  headers: Record<string, string>;
  body: string;
  valid: boolean;
}

const file = new URL("../../conformance/vectors.json", import.meta.url);
const { now, cases } = JSON.parse(readFileSync(file, "utf8")) as { now: number; cases: Vector[] };

let keys: Served;
before(async () => {
  keys = await serve((request, response) => {
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify(cases[Number(request.url!.slice(1))]!.keys));
  });
});
after(() => keys.close());

test("there are vectors", () => assert.ok(cases.length > 100));

for (const [index, v] of cases.entries()) {
  test(v.name, async () => {
    const verifier = new Verifier({
      secrets: v.secrets,
      ...(v.keys && { keysUrl: `${keys.url}/${index}` }),
      ...(v.origin && { origin: v.origin }),
      now: () => now * 1000,
    });
    const { method, url, headers } = v;
    const verified = verifier.verify({ method, url, headers, body: Buffer.from(v.body, "base64") });
    if (v.valid) await verified;
    else await assert.rejects(verified, InvalidMessage);
  });
}
