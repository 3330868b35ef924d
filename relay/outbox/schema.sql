-- The outbox: insert a row for an event in the transaction that does the work. "spendhook relay" sends the row and
-- deletes it when the event is accepted. A row that could never be accepted fails here, in the transaction that
-- inserts it.
CREATE TABLE IF NOT EXISTS spendhook_outbox (
    seq           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            text        NOT NULL
        CONSTRAINT id_is_valid CHECK (id ~ '^[A-Za-z0-9_-]{1,128}$' AND id !~ '^spendhook-'),
    company_uuid  uuid,
    event         text        NOT NULL
        CONSTRAINT event_is_valid CHECK (event ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$'),
    -- Rows of one key are sent in the order of seq. NULL: the order does not matter.
    key           text
        CONSTRAINT key_is_valid CHECK (octet_length(key) BETWEEN 1 AND 1024),
    "timestamp"   timestamptz NOT NULL DEFAULT now()
        CONSTRAINT timestamp_is_valid CHECK ("timestamp" >= '1970-01-01 00:00:00+00' AND "timestamp" < '9999-12-31 00:00:00+00'),
    -- json, not jsonb: an amount is sent as it was written.
    metadata      json        NOT NULL DEFAULT '{}'
        CONSTRAINT metadata_is_valid CHECK (json_typeof(metadata) = 'object' AND octet_length(metadata::text) <= 262144),
    error_code    text
        CONSTRAINT error_code_is_valid CHECK (octet_length(error_code) <= 128),
    error_message text
        CONSTRAINT error_message_is_valid CHECK (octet_length(error_message) <= 4096)
) WITH (
    -- Each row is deleted soon, so vacuum must not wait for a fifth of the table.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000
);

-- Rows that can never be accepted, with the reason.
CREATE TABLE IF NOT EXISTS spendhook_outbox_dead (
    number        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq           bigint      NOT NULL,
    id            text        NOT NULL,
    company_uuid  uuid,
    event         text        NOT NULL,
    key           text,
    "timestamp"   timestamptz NOT NULL,
    metadata      json        NOT NULL,
    error_code    text,
    error_message text,
    reason        text        NOT NULL,
    dead_at       timestamptz NOT NULL DEFAULT now()
);
