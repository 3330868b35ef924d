-- +goose Up
-- The cards and jobs that requests with an Idempotency-Key created. The transaction
-- that creates a card or job writes its row here, so that a repeated request finds it.
CREATE TABLE creations (
    key_hash BYTEA NOT NULL PRIMARY KEY,
    fingerprint BYTEA NOT NULL,
    made_uuid BYTEA NOT NULL, -- a card or a job
    created_at BIGINT NOT NULL
);
CREATE INDEX creations_created ON creations (created_at);
