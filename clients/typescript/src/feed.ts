import { Access, notTheApi, type AccessOptions } from "./access.js";
import { asObject, asString, parseJson } from "./encoding.js";

/** Which feed to read. The token needs the scopes events:read and subscribers:read. */
export interface FeedOptions extends AccessOptions {
  /** The uuid of the subscriber. */
  subscriber: string;
  /** The uuid of the company, if the token belongs to none. */
  company?: string;
  /** The largest number of events in a page, 1 to 1,000; 100 by default. */
  limit?: number;
}

/** An event of the feed. */
export interface FeedEvent {
  id: string;
  sequence: number;
  /** Why the event has no body: COMPACTED, CANCELLED or QUARANTINED; null if it has one. */
  gone: string | null;
  /** The body of a delivery; null if the event is gone. */
  body: Buffer | null;
}

/** A page of the feed. */
export interface FeedPage {
  events: FeedEvent[];
  /** The number up to which the page goes. */
  next: number;
  /** Where the next page begins. */
  cursor: string;
  /** Whether the next page is there already. */
  more: boolean;
  /** The number of events that the daemon no longer keeps, whether they are for this subscriber or not. */
  forgotten: number;
}

const patience = 15_000; // ms beyond the time for which the daemon waits
const maxPage = 64 << 20; // 4 MiB of bodies, escaped

/** The feed of a subscriber, which has all of its events. */
export class Feed {
  readonly #access: Access;
  readonly #path: string;
  readonly #query: Record<string, string>;

  constructor({ subscriber, company, limit = 100, ...access }: FeedOptions) {
    if (!subscriber) throw new TypeError("a feed needs a subscriber");
    this.#access = new Access(access);
    this.#path = `/api/v1/subscribers/${encodeURIComponent(subscriber)}/feed`;
    this.#query = { limit: String(limit), ...(company && { companyUuid: company }) };
  }

  /**
   * Returns the events after the cursor of a page; "" begins with the oldest event. If there are none, the daemon waits for
   * one, for `wait` seconds, 30 at most. It throws ApiError or ConnectionFailed, and the reason of the signal if that is
   * aborted. The ApiError FEED_CHANGED says that the cursor is void: read from the start.
   */
  async read(cursor: string, wait = 0, signal?: AbortSignal): Promise<FeedPage> {
    const url = this.#access.address(this.#path);
    const place = cursor ? { cursor } : { after: "0" };
    url.search = new URLSearchParams({ ...this.#query, ...place, wait: `${wait}s` }).toString();
    const answer = await this.#access.send({ method: "GET", url, timeout: wait * 1000 + patience, maxSize: maxPage, signal });
    const page = readPage(parseJson(answer.body));
    // A page that does not lead on would be read for ever.
    if (!page || (page.more && page.cursor === cursor)) throw notTheApi(answer);
    return page;
  }
}

function readPage(value: unknown): FeedPage | null {
  const document = asObject(value);
  const { content, next, cursor, more, forgotten } = document ?? {};
  if (!Array.isArray(content) || !Number.isSafeInteger(next) || typeof more !== "boolean") return null;
  if (typeof cursor !== "string" || !cursor) return null;
  const events = content.map(readItem);
  if (!events.every((event) => event !== null)) return null;
  return { events, next: next as number, cursor, more, forgotten: typeof forgotten === "number" ? forgotten : 0 };
}

function readItem(value: unknown): FeedEvent | null {
  const { id, sequence, gone, body } = asObject(value) ?? {};
  if (typeof id !== "string" || !id || !Number.isSafeInteger(sequence)) return null;
  const reason = asString(gone);
  const text = reason === null ? asString(body) : null;
  return { id, sequence: sequence as number, gone: reason, body: text === null ? null : Buffer.from(text) };
}
