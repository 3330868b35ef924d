-- The names of companies, for people. A company may have none, and no record in companies. The next import of a company
-- names it.

-- +goose Up
CREATE TABLE company_names (
    uuid BYTEA NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    name_folded TEXT NOT NULL -- as users.name_folded
);
CREATE INDEX company_names_folded ON company_names (name_folded, uuid);
