// Receives deliveries with Node.js alone.

import { createHmac, timingSafeEqual } from "node:crypto";
import { receive } from "./inbox.mjs";

await receive(verified);

// verified checks a signature of Standard Webhooks 1.0.0: the HMAC-SHA256 of id, timestamp and body,
// with a dot between them. The key is the decoded secret.
function verified(secret, headers, body) {
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!/^\d+$/.test(timestamp) || Math.abs(Date.now() / 1000 - Number(timestamp)) > 5 * 60) return false;
  const mac = createHmac("sha256", Buffer.from(secret.replace(/^whsec_/, ""), "base64"));
  mac.update(`${headers["webhook-id"]}.${timestamp}.`).update(body);
  const want = Buffer.from(`v1,${mac.digest("base64")}`);
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => {
    const got = Buffer.from(signature);
    return got.length === want.length && timingSafeEqual(got, want);
  });
}
