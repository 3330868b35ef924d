// Receives deliveries and verifies them with the library of Standard Webhooks.

import { Webhook } from "standardwebhooks";
import { receive } from "./inbox.mjs";

await receive(verified);

function verified(secret, headers, body) {
  try {
    new Webhook(secret).verify(body, headers);
    return true;
  } catch {
    return false;
  }
}
