/** The headers of a request, with names in any case: an object, or pairs as those of the class Headers. */
export type RequestHeaders =
  Iterable<readonly [string, string]> | Readonly<Record<string, string | readonly string[] | undefined>>;

/** A request as the server received it. */
export interface WebhookRequest {
  method: string;
  /** Path and query, byte for byte as in the request line. */
  url: string;
  headers: RequestHeaders;
  /** All of the body, as it was received. */
  body: Uint8Array;
}

/** The answer to a request. */
export interface WebhookResponse {
  status: number;
  /** A text, or "". */
  body: string;
  /** Header fields; without it there are none. */
  headers?: Readonly<Record<string, string>>;
}

/** The largest body that is taken, in bytes: larger than that of any delivery. */
export const maxBody = 1 << 20;

/** The lines of the header fields, by names in lower case. */
export class Fields {
  readonly #lines = new Map<string, string[]>();

  constructor(headers: RequestHeaders) {
    for (const [name, value] of isIterable(headers) ? headers : Object.entries(headers)) {
      if (value === undefined) continue;
      const key = name.toLowerCase();
      this.#lines.set(key, [...(this.#lines.get(key) ?? []), ...(typeof value === "string" ? [value] : value)]);
    }
  }

  /** Returns the lines of a field; none if it is missing. */
  lines(name: string): readonly string[] {
    return this.#lines.get(name) ?? [];
  }

  /** Returns the value of a field, its lines combined (RFC 9110 section 5.3); "" if it is missing. */
  value(name: string): string {
    return this.lines(name).join(", ");
  }
}

function isIterable(headers: RequestHeaders): headers is Iterable<readonly [string, string]> {
  return Symbol.iterator in headers;
}
