import { asObject, asString, parseJson } from "./encoding.js";

/** An event as a delivery or the feed has it. What the body does not have is null; metadata are absent. */
export interface WebhookEvent {
  /** Unique in the company. It is that of the header webhook-id, in each format. */
  id: string;
  /** Such as PAYMENT_PAID. */
  type: string | null;
  /** The company. */
  companyUuid: string | null;
  /** When the event happened. */
  timestamp: Date | null;
  /**
   * A JSON object; absent in the formats "thin" and "cloudevents". Its numbers are those of JavaScript, which rounds
   * decimals and numbers beyond 2^53. For exact ones, parse `body` with a parser that keeps the digits, or have the sender
   * write strings.
   */
  metadata?: Record<string, unknown>;
  /** The number of the event in its company; null if it is unknown. Only HTTP message signatures cover it. */
  sequence: number | null;
  /** The body of the delivery, byte for byte. */
  body: Buffer;
}

/** Reads what it can of a body; it need not be JSON. */
export function readEvent(id: string, sequence: number | null, body: Buffer): WebhookEvent {
  const members = asObject(parseJson(body)) ?? {};
  const cloud = "specversion" in members; // CloudEvents
  const metadata = asObject(members["metadata"]);
  return {
    id,
    type: asString(members[cloud ? "type" : "event"]),
    companyUuid: asString(members[cloud ? "subject" : "companyUuid"]),
    timestamp: dateOf(members[cloud ? "time" : "timestamp"]),
    ...(metadata && { metadata }),
    sequence,
    body,
  };
}

/** Reads a date of RFC 3339. The class Date would take much more. */
function dateOf(value: unknown): Date | null {
  if (typeof value !== "string" || !/^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/.test(value)) return null;
  const date = new Date(value.toUpperCase());
  return Number.isNaN(date.getTime()) ? null : date;
}

/** Reads webhook-sequence or webhook-previous; null if it is missing or no number. */
export function numberOf(header: string): number | null {
  const number = /^[0-9]+$/.test(header) ? Number(header) : NaN;
  return Number.isSafeInteger(number) ? number : null;
}

/** Returns the text that the answer to a challenge repeats; null for any other event. */
export function challengeOf({ type, metadata }: WebhookEvent): string | null {
  return type === "SUBSCRIBER_CHALLENGE" ? asString(metadata?.["challenge"]) || null : null;
}
