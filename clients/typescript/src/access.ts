// Access to the API with a token.

import { asObject, asString, parseJson } from "./encoding.js";
import { ApiError, ConnectionFailed, type FieldProblem } from "./errors.js";
import { call, type Answer, type Call, type TlsOptions } from "./http.js";

/** The id and the client secret of an OAuth client. */
export interface Credentials {
  id: string;
  secret: string;
  /** The scopes of the token, separated by spaces; by default all those of the client. */
  scope?: string;
}

/** How to connect to the daemon. */
export interface AccessOptions {
  /** The base address of the daemon, such as https://spendhook.example.com. */
  url: string | URL;
  /** An access token. Give it or credentials. */
  token?: string;
  /** Credentials, which get tokens and renew them. */
  credentials?: Credentials;
  /** Allows to send a token over plain http to another host than this one. */
  insecure?: boolean;
  /** TLS settings: a CA of your own, or a client certificate. */
  tls?: TlsOptions;
  /** The clock, in milliseconds; Date.now by default. */
  now?: () => number;
}

const tokenTimeout = 10_000;
const renewBefore = 30_000; // ms before the end of a token
const defaultLife = 300; // seconds, if the answer has no expires_in
const maxToken = 64 << 10;

/** The refusal of a request for a token. */
export class TokenRefused extends ApiError {}

/** Sends requests with a token. */
export class Access {
  readonly tls: TlsOptions | undefined;
  readonly #base: string;
  readonly #token: string | null;
  readonly #credentials: Credentials | null;
  readonly #now: () => number;
  #kept: { token: string; until: number } | null = null;
  #fetching: Promise<string> | null = null;

  constructor({ url, token, credentials, insecure = false, tls, now = Date.now }: AccessOptions) {
    const base = new URL(url);
    if (base.protocol !== "https:" && base.protocol !== "http:") throw new TypeError("url is not an http or https URL");
    if (base.search || base.hash || base.username || base.password)
      throw new TypeError("url has more than scheme, host and path");
    if (!token === !credentials) throw new TypeError("give a token or credentials");
    if (base.protocol === "http:" && !insecure && !isLoopback(base.hostname)) {
      throw new TypeError(
        "a token must not be sent over http to another host; begin url with https://, or allow it with insecure",
      );
    }
    this.#base = base.href.replace(/\/+$/, "");
    this.#token = token ?? null;
    this.#credentials = credentials ?? null;
    this.#now = now;
    this.tls = tls;
  }

  /** Returns the address of a path of the API. */
  address(path: string): URL {
    return new URL(this.#base + path);
  }

  /**
   * Sends a request and returns an answer with a status of 2xx; any other is an ApiError. A refused token is renewed once.
   */
  async send(c: Omit<Call, "tls">): Promise<Answer> {
    for (let renewed = false; ; renewed = true) {
      const token = await this.token();
      const answer = await call({ ...c, headers: { ...c.headers, authorization: `Bearer ${token}` }, tls: this.tls });
      if (answer.status >= 200 && answer.status < 300) return answer;
      if (answer.status !== 401 || renewed || !this.discard(token)) throw problem(answer, this.#now());
    }
  }

  /** Returns a token that is valid now. */
  async token(): Promise<string> {
    if (this.#token !== null) return this.#token;
    if (this.#kept && this.#now() < this.#kept.until) return this.#kept.token;
    this.#fetching ??= this.#fetch(this.#credentials!).finally(() => (this.#fetching = null));
    return this.#fetching;
  }

  /** Forgets a token that was refused. Returns false if there is no way to get another one. */
  discard(refused: string): boolean {
    if (this.#kept?.token === refused) this.#kept = null;
    return this.#credentials !== null;
  }

  async #fetch({ id, secret, scope }: Credentials): Promise<string> {
    const asked = this.#now();
    const form = new URLSearchParams({ grant_type: "client_credentials", ...(scope && { scope }) });
    const answer = await call({
      method: "POST",
      url: this.address("/oauth/token"),
      headers: {
        "content-type": "application/x-www-form-urlencoded",
        authorization: `Basic ${Buffer.from(`${formEncoded(id)}:${formEncoded(secret)}`).toString("base64")}`,
      },
      body: form.toString(),
      tls: this.tls,
      timeout: tokenTimeout,
      maxSize: maxToken,
    });
    if (answer.status !== 200) throw problem(answer, asked, TokenRefused);
    const document = asObject(parseJson(answer.body));
    const token = asString(document?.["access_token"]);
    if (!token || !/^[!-~]+$/.test(token)) throw notTheApi(answer);
    const expiresIn = document!["expires_in"];
    const life = 1000 * (typeof expiresIn === "number" && expiresIn > 0 ? expiresIn : defaultLife);
    this.#kept = { token, until: asked + life - Math.min(renewBefore, life / 2) };
    return token;
  }
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** Encodes as RFC 6749 section 2.3.1 wants it within HTTP Basic. */
function formEncoded(text: string): string {
  return new URLSearchParams([["", text]]).toString().slice(1);
}

/** Returns the error for an answer that is not from the API. */
export function notTheApi(answer: Answer): ApiError {
  return new ApiError(answer.status, "", "the answer is not from a Spendhook daemon; check url");
}

/** Reads a problem document (RFC 9457), or an error of RFC 6749. */
function problem({ status, headers, body }: Answer, now: number, Kind = ApiError): ApiError {
  const document = asObject(parseJson(body)) ?? {};
  const code = asString(document["code"]) ?? asString(document["error"]) ?? "";
  const detail = asString(document["detail"]) ?? asString(document["error_description"]) ?? asString(document["title"]) ?? "";
  return new Kind(status, code, detail, retryAfterOf(headers["retry-after"], now), fieldProblems(document["errors"]));
}

/** Reads the field problems of a problem document or of an item. */
export function fieldProblems(errors: unknown): FieldProblem[] {
  return Array.isArray(errors) ? errors.filter((error) => asObject(error)) : [];
}

/** Reads Retry-After (RFC 9110 section 10.2.3), in seconds; null if there is none. */
export function retryAfterOf(header: string | undefined, now: number): number | null {
  if (header === undefined) return null;
  if (/^[0-9]{1,9}$/.test(header)) return Number(header);
  const at = /^[A-Z][a-z]{2}, /.test(header) ? Date.parse(header) : NaN;
  return Number.isNaN(at) ? null : Math.max(0, (at - now) / 1000);
}

/** Reports whether the same request may succeed later. */
export function isTemporary(error: unknown): boolean {
  if (error instanceof ConnectionFailed) return error.temporary;
  return error instanceof ApiError && [429, 502, 503, 504].includes(error.status);
}
