import { createHash, createHmac, generateKeyPairSync, sign, type KeyObject } from "node:crypto";

import type { WebhookRequest } from "../dist/index.js";

export const secret = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
export const origin = "https://hooks.example.com";

/** The time of all messages, in unix seconds. */
export const now = 1795167000;
export const clock = () => now * 1000;

/** Returns a delivery that is signed by a secret. */
export function signed(id: string, body: string | Buffer, more: Record<string, string> = {}): WebhookRequest {
  const bytes = Buffer.from(body as string);
  const mac = createHmac("sha256", Buffer.from(secret.slice(6), "base64"))
    .update(`${id}.${now}.`)
    .update(bytes)
    .digest("base64");
  const headers = { "webhook-id": id, "webhook-timestamp": String(now), "webhook-signature": `v1,${mac}`, ...more };
  return { method: "POST", url: "/hooks", headers, body: bytes };
}

/** Returns the body of an event. */
export function bodyOf(id: string, metadata: unknown = {}, event = "PAYMENT_PAID"): string {
  return JSON.stringify({
    id,
    companyUuid: "0197a1b2-0000-7000-8000-000000000001",
    event,
    timestamp: "2026-11-20T09:30:00.000Z",
    metadata,
  });
}

export interface TestKey {
  jwk: Record<string, unknown>;
  privateKey: KeyObject;
}

/** Makes a key of ed25519. */
export function newKey(kid: string): TestKey {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  return { jwk: { ...publicKey.export({ format: "jwk" }), kid, use: "sig", alg: "EdDSA" }, privateKey };
}

/** Returns a delivery with a v1a signature. */
export function signedV1a(key: TestKey, id = "pay-1"): WebhookRequest {
  const signature = sign(null, Buffer.from(`${id}.${now}.{}`), key.privateKey).toString("base64");
  const headers = { "webhook-id": id, "webhook-timestamp": String(now), "webhook-signature": `v1a,${signature}` };
  return { method: "POST", url: "/hooks", headers, body: Buffer.from("{}") };
}

/** Returns a delivery with an HTTP message signature. */
export function signedMessage(key: TestKey, id = "pay-1"): WebhookRequest {
  const body = Buffer.from("{}");
  const digest = `sha-256=:${createHash("sha256").update(body).digest("base64")}:`;
  const values = {
    "@method": "POST",
    "@target-uri": `${origin}/hooks`,
    "content-digest": digest,
    "content-type": "application/json",
    "webhook-id": id,
    "webhook-timestamp": String(now),
  };
  const names = Object.keys(values).map((name) => `"${name}"`);
  const params = `(${names.join(" ")});created=${now};expires=${now + 300};keyid="${key.jwk["kid"]}";alg="ed25519";tag="webhook"`;
  const base = [...Object.entries(values).map(([name, value]) => `"${name}": ${value}`), `"@signature-params": ${params}`].join(
    "\n",
  );
  const signature = sign(null, Buffer.from(base), key.privateKey).toString("base64");
  const headers = {
    "Content-Digest": digest,
    "Content-Type": "application/json",
    "Webhook-Id": id,
    "Webhook-Timestamp": String(now),
    "Signature-Input": `webhook=${params}`,
    Signature: `webhook=:${signature}:`,
  };
  return { method: "POST", url: "/hooks", headers, body };
}
