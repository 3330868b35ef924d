-- One schema for SQLite and PostgreSQL. UUIDs are 16 raw bytes, money is minor
-- units of the row's currency, dates are days and times are milliseconds since
-- 1970-01-01 UTC: each sorts and compares alike in both databases.

-- +goose Up
CREATE TABLE companies (
    uuid BYTEA NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    currency TEXT NOT NULL,
    credit_limit BIGINT NOT NULL,
    region TEXT NOT NULL,
    reimbursements_rev BIGINT NOT NULL DEFAULT 0 -- increases with every change of reimbursements or users
);

CREATE TABLE users (
    uuid BYTEA NOT NULL PRIMARY KEY,
    company_uuid BYTEA NOT NULL REFERENCES companies (uuid),
    username TEXT NOT NULL,
    name TEXT NOT NULL,
    name_folded TEXT NOT NULL, -- lower case, without accents
    erp_id TEXT NOT NULL,
    active BOOLEAN NOT NULL
);
CREATE INDEX users_username ON users (company_uuid, username);
CREATE INDEX users_erp_id ON users (company_uuid, erp_id);
CREATE INDEX users_name ON users (company_uuid, name_folded, uuid);

CREATE TABLE cards (
    uuid BYTEA NOT NULL PRIMARY KEY,
    company_uuid BYTEA NOT NULL REFERENCES companies (uuid),
    holder_uuid BYTEA NOT NULL REFERENCES users (uuid),
    last_four TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    name TEXT NOT NULL,
    threshold BIGINT,
    periodicity TEXT NOT NULL,
    issued_at BIGINT NOT NULL
);
CREATE INDEX cards_issued ON cards (company_uuid, issued_at DESC, uuid);
CREATE INDEX cards_holder ON cards (company_uuid, holder_uuid, issued_at DESC, uuid);
CREATE INDEX cards_status ON cards (company_uuid, status, issued_at DESC, uuid);
CREATE INDEX cards_type ON cards (company_uuid, type, issued_at DESC, uuid);
CREATE INDEX cards_periodicity ON cards (company_uuid, periodicity, issued_at DESC, uuid);

CREATE TABLE card_jobs (
    uuid BYTEA NOT NULL PRIMARY KEY,
    company_uuid BYTEA NOT NULL, -- may have no record in companies
    created_at BIGINT NOT NULL,
    pending INTEGER NOT NULL, -- items without an outcome
    finished_at BIGINT -- when the last item got its outcome
);
CREATE INDEX card_jobs_created ON card_jobs (created_at);

CREATE TABLE card_job_items (
    job_uuid BYTEA NOT NULL REFERENCES card_jobs (uuid) ON DELETE CASCADE,
    item_index INTEGER NOT NULL,
    company_uuid BYTEA NOT NULL, -- of its job, as created_at is
    created_at BIGINT NOT NULL,
    request_uuid BYTEA NOT NULL,
    type TEXT NOT NULL,
    name TEXT NOT NULL,
    holder_uuid BYTEA NOT NULL,
    threshold BIGINT,
    periodicity TEXT NOT NULL,
    status TEXT NOT NULL,
    card_uuid BYTEA,
    error_code TEXT NOT NULL,
    error_message TEXT NOT NULL,
    finished_at BIGINT,
    retry_at BIGINT, -- after a failure: not before
    PRIMARY KEY (job_uuid, item_index)
);
-- Companies in turn, and the jobs of each in order.
CREATE INDEX card_job_items_pending ON card_job_items (company_uuid, created_at, job_uuid, item_index) WHERE status = 'PENDING';

CREATE TABLE card_outbox (
    request_uuid BYTEA NOT NULL PRIMARY KEY,
    company_uuid BYTEA NOT NULL,
    job_uuid BYTEA NOT NULL,
    item_index INTEGER NOT NULL,
    finished_at BIGINT NOT NULL
);
-- The companies, and the outcomes of each in order.
CREATE INDEX card_outbox_order ON card_outbox (company_uuid, finished_at, request_uuid);
CREATE INDEX card_outbox_job ON card_outbox (job_uuid);

CREATE TABLE locations (
    uuid BYTEA NOT NULL PRIMARY KEY,
    company_uuid BYTEA NOT NULL REFERENCES companies (uuid),
    name TEXT NOT NULL,
    code TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX locations_created ON locations (company_uuid, created_at, uuid);
CREATE INDEX locations_status ON locations (company_uuid, status, created_at, uuid);

CREATE TABLE statements (
    uuid BYTEA NOT NULL PRIMARY KEY,
    company_uuid BYTEA NOT NULL REFERENCES companies (uuid),
    year INTEGER NOT NULL,
    month INTEGER NOT NULL,
    status TEXT NOT NULL,
    total BIGINT NOT NULL,
    currency TEXT NOT NULL,
    closing_day INTEGER NOT NULL,
    UNIQUE (company_uuid, year, month)
);
CREATE INDEX statements_status ON statements (company_uuid, status, year, month);

-- recency is the last update's day, negated: lists are newest first and then by
-- uuid, and with one direction for both, (recency, uuid) is one range to seek in.
-- There are no foreign keys here: the import checks the references of a whole batch at once.
CREATE TABLE reimbursements (
    uuid BYTEA NOT NULL PRIMARY KEY,
    company_uuid BYTEA NOT NULL,
    recency INTEGER NOT NULL,
    status TEXT NOT NULL,
    category INTEGER,
    requester_uuid BYTEA NOT NULL,
    creation_day INTEGER NOT NULL,
    expense_day INTEGER,
    approval_day INTEGER,
    payment_day INTEGER,
    amount BIGINT NOT NULL,
    currency TEXT NOT NULL,
    detail TEXT NOT NULL -- the fields without a filter, as JSON
);
-- This index has every filtered column, so that a filter for which no other index
-- is selective reads no rows of the table.
CREATE INDEX reimbursements_recency ON reimbursements (
    company_uuid, recency, uuid, status, category, requester_uuid, creation_day, expense_day, approval_day, payment_day
);
CREATE INDEX reimbursements_status ON reimbursements (company_uuid, status, recency);
CREATE INDEX reimbursements_category ON reimbursements (company_uuid, category, recency) WHERE category IS NOT NULL;
CREATE INDEX reimbursements_requester ON reimbursements (company_uuid, requester_uuid, recency);
CREATE INDEX reimbursements_creation ON reimbursements (company_uuid, creation_day, recency);
CREATE INDEX reimbursements_expense ON reimbursements (company_uuid, expense_day, recency) WHERE expense_day IS NOT NULL;
CREATE INDEX reimbursements_approval ON reimbursements (company_uuid, approval_day, recency) WHERE approval_day IS NOT NULL;
CREATE INDEX reimbursements_payment ON reimbursements (company_uuid, payment_day, recency) WHERE payment_day IS NOT NULL;
