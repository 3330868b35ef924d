/**
 * Receives the webhooks of Spendhook, works on each event once, and emits events.
 *
 * @module
 */

export type { AccessOptions, Credentials } from "./access.js";
export type { components, operations, paths } from "./api.gen.js";
export { createApi, type Api } from "./api.js";
export { Emitter, EmitFailed, EventRefused, type EmitterOptions, type ItemError, type NewEvent, type Result } from "./emitter.js";
export { ApiError, ConnectionFailed, InvalidMessage, KeysUnavailable, type FieldProblem } from "./errors.js";
export type { WebhookEvent } from "./event.js";
export { Feed, type FeedEvent, type FeedOptions, type FeedPage } from "./feed.js";
export type { TlsOptions } from "./http.js";
export { Inbox, type InboxOptions, type Passed, type Progress } from "./inbox.js";
export { nodeHandler, type NodeHandler, type NodeRequest } from "./node.js";
export { insertOutbox, type OutboxClient, type OutboxEvent } from "./outbox.js";
export { PgStore, type PgClient, type PgPool } from "./pg.js";
export type { RequestHeaders, WebhookRequest, WebhookResponse } from "./request.js";
export { SqlStore, type SqlStoreOptions } from "./sql.js";
export type { StoreOptions } from "./statements.js";
export { MemoryStore, type Store, type Transaction } from "./store.js";
export { Verifier, type VerifierOptions } from "./verifier.js";
