/** The message has no valid signature: answer 401. */
export class InvalidMessage extends Error {
  override name = "InvalidMessage";
}

/**
 * The published keys cannot be read now, so the message can neither be accepted nor refused: answer 503, and the delivery
 * is repeated.
 */
export class KeysUnavailable extends Error {
  override name = "KeysUnavailable";
}

/** What is wrong with one field of a request. */
export interface FieldProblem {
  /** A JSON pointer into the body, or into the parameters: /events/0, /size; "" for the body as a whole. */
  field?: string;
  /** A stable code. */
  code?: string;
  /** A text for people. */
  message?: string;
}

/** The daemon refused a request. docs/errors.md of Spendhook explains each code. */
export class ApiError extends Error {
  override name = "ApiError";

  constructor(
    /** The status of the answer. */
    readonly status: number,
    /** The stable code of the problem, such as VALIDATION_ERROR; "" if the answer has none. */
    readonly code: string,
    /** A text for people. */
    readonly detail: string,
    /** The seconds after which to try again, from Retry-After or the item; null if there are none. */
    readonly retryAfter: number | null = null,
    /** The fields that are not valid. */
    readonly errors: readonly FieldProblem[] = [],
  ) {
    super(`${status} ${[code, detail].filter(Boolean).join(": ")}`.trim());
  }
}

/** The daemon gave no complete answer: no connection, a time-out, or a connection that was cut. */
export class ConnectionFailed extends Error {
  override name = "ConnectionFailed";

  constructor(
    message: string,
    /** Whether another attempt may succeed; false for a certificate that is not trusted. */
    readonly temporary: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}
