/** A client of PostgreSQL within a transaction, such as a Client or PoolClient of `pg`. */
export interface OutboxClient {
  query(text: string, values: unknown[]): Promise<unknown>;
}

/** An event that is to be sent by `spendhook relay`. */
export interface OutboxEvent {
  /**
   * Unique in the company: 1 to 128 of A-Z a-z 0-9 _ -, not beginning with spendhook-. Make it of your work, such as the
   * number of a payment, so that work that is repeated has the same one.
   */
  id: string;
  /** Its type, such as PAYMENT_PAID. */
  event: string;
  /** The uuid of the company; that of the relay by default. */
  companyUuid?: string | null;
  /**
   * Events of one key are sent in the order in which they were inserted. Insert after you have locked what the key stands
   * for, such as the account, so that this is also the order of the commits. Without a key the order does not matter. At
   * most 1,024 bytes.
   */
  key?: string | null;
  /** When the event happened: a Date, RFC 3339, or epoch milliseconds. By default the begin of the transaction. */
  timestamp?: Date | string | number | null;
  /**
   * A JSON object of at most 256 KiB. Write decimals as strings: numbers of JavaScript are rounded. A string is taken as the
   * JSON itself, and its numbers are sent as they are written.
   */
  metadata?: Readonly<Record<string, unknown>> | string | null;
  /** At most 128 bytes. */
  errorCode?: string | null;
  /** At most 4,096 bytes. */
  errorMessage?: string | null;
}

// Inserts a row, and wakes the relay when the transaction is committed. The libraries of all languages have this text.
const statement =
  "WITH written AS (INSERT INTO spendhook_outbox" +
  ' (id, company_uuid, event, key, "timestamp", metadata, error_code, error_message)' +
  " VALUES ($1, CAST($2 AS uuid), $3, $4, COALESCE(CAST($5 AS timestamptz), now()), CAST($6 AS json), $7, $8) RETURNING 1)" +
  " SELECT pg_notify('spendhook_outbox', '') FROM written";

/**
 * Inserts an event into the table spendhook_outbox. Call it within the transaction of your own work: the event is sent if
 * and only if that is committed. It is rejected with a TypeError if the event is not valid, and else with the error of the
 * client.
 */
export async function insertOutbox(client: OutboxClient, event: OutboxEvent): Promise<void> {
  await client.query(statement, values(event));
}

function values(event: OutboxEvent): unknown[] {
  const { id, companyUuid, event: type, key, timestamp, metadata, errorCode, errorMessage } = event;
  const refuse = (what: string) => new TypeError(`event ${id}: ${what}`);
  if (typeof id !== "string" || !/^[A-Za-z0-9_-]{1,128}$/.test(id) || id.startsWith("spendhook-")) {
    throw new TypeError("the id of an event has 1 to 128 of A-Z a-z 0-9 _ - and does not begin with spendhook-");
  }
  if (typeof type !== "string" || !/^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/.test(type)) {
    throw refuse("its type has 1 to 128 of A-Z a-z 0-9 _ . : - and begins with a letter or digit");
  }
  if (companyUuid && !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(companyUuid)) {
    throw refuse("the company is not a UUID");
  }
  for (const [name, text, most] of [["key", key, 1024], ["errorCode", errorCode, 128], ["errorMessage", errorMessage, 4096]] as const) {
    if (text && Buffer.byteLength(text) > most) throw refuse(`${name} has more than ${most} bytes`);
  }
  const json = metadata === undefined || metadata === null ? "{}" : object(metadata);
  if (json === undefined) throw refuse("the metadata are not a JSON object");
  if (Buffer.byteLength(json) > 256 << 10) throw refuse("the metadata have more than 256 KiB");
  const at = timestamp === undefined || timestamp === null ? null : instant(timestamp);
  if (at === undefined) throw refuse("the timestamp is not valid");
  return [id, companyUuid || null, type, key || null, at, json, errorCode || null, errorMessage || null];
}

/** Returns the JSON of an object; undefined if it is another value. */
function object(metadata: unknown): string | undefined {
  try {
    const text = typeof metadata === "string" ? metadata : JSON.stringify(metadata);
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? text : undefined;
  } catch {
    return undefined;
  }
}

/** Returns RFC 3339. PostgreSQL would take a time without its zone as one of the zone of the session. */
function instant(timestamp: Date | string | number): string | undefined {
  if (typeof timestamp === "string") {
    const valid = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/.test(timestamp);
    return valid ? timestamp : undefined;
  }
  const date = new Date(timestamp);
  return Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}
