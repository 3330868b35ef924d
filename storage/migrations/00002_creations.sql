-- +goose Up
-- What was created for an Idempotency-Key, written together with it, so that
-- the request again finds it whatever has been lost since.
CREATE TABLE creations (
    key_hash BYTEA NOT NULL PRIMARY KEY,
    fingerprint BYTEA NOT NULL,
    made_uuid BYTEA NOT NULL, -- a card or a job
    created_at BIGINT NOT NULL
);
CREATE INDEX creations_created ON creations (created_at);
