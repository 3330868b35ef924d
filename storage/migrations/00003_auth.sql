-- The keys that sign access tokens, and the OAuth clients. Times
-- are milliseconds since 1970-01-01 UTC, private keys are sealed.

-- +goose Up
CREATE TABLE token_keys (
    id TEXT NOT NULL PRIMARY KEY, -- the "kid"
    sealed TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    signs_from BIGINT NOT NULL -- until signs_from of the next key
);

CREATE TABLE clients (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    company_uuid BYTEA, -- may have no record in companies
    scopes TEXT NOT NULL, -- a JSON array, like certificates
    certificates TEXT NOT NULL,
    secret_hash TEXT NOT NULL,
    old_secret_hash TEXT NOT NULL,
    old_secret_until BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revoked_at BIGINT, -- since when it is disabled or deleted
    deleted BOOLEAN NOT NULL -- kept until its last token has expired
);
CREATE INDEX clients_created ON clients (created_at, id) WHERE NOT deleted;
CREATE INDEX clients_revoked ON clients (revoked_at) WHERE revoked_at IS NOT NULL;
