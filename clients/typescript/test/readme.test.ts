import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { bodyOf, secret } from "./messages.js";
import { serve } from "./server.js";

const root = fileURLToPath(new URL("..", import.meta.url)); // of the package

test("the receiver of the README prints the event that it works on", { timeout: 30_000 }, async (t) => {
  const program = /```ts\n(.*?)```/s.exec(readFileSync(join(root, "README.md"), "utf8"))![1]!;
  const folder = mkdtempSync(join(tmpdir(), "spendhook-"));
  t.after(() => rmSync(folder, { recursive: true }));
  mkdirSync(join(folder, "node_modules"));
  symlinkSync(root, join(folder, "node_modules", "spendhook"));
  writeFileSync(join(folder, "receiver.mts"), program.replace("3000", "0"));
  const item = { sequence: 1, id: "pay-1", body: bodyOf("pay-1", { amount: "12.50" }) };
  const page = JSON.stringify({ content: [item], next: 1, cursor: "1-a", more: false });
  const served = await serve((_, response) => response.end(page));
  t.after(served.close);
  const settings = { SPENDHOOK_URL: served.url, SPENDHOOK_TOKEN: "t", SPENDHOOK_SUBSCRIBER: "s-1" };
  const env = { ...process.env, ...settings, SPENDHOOK_SECRET: `${secret}  ${secret}` };
  const receiver = spawn(process.execPath, ["receiver.mts"], { cwd: folder, env, stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => receiver.kill());
  const lines = createInterface({ input: receiver.stdout })[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, "pay-1");
});
