package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"spendhook/audit"
	"spendhook/auth/keys"
)

// keysCmd has the commands for signing keys and encryption keys.
type keysCmd struct {
	Rotate    keysRotateCmd    `cmd:"" help:"Add a signing key for access tokens. It signs after 10 minutes, when all replicas and verifiers know it. Tokens of earlier keys stay valid." example:"spendhook keys rotate"`
	Revoke    keysRevokeCmd    `cmd:"" help:"Revoke a signing key, such as a leaked one. Every replica refuses all its tokens within 5 seconds." example:"spendhook keys revoke NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"`
	List      keysListCmd      `cmd:"" help:"List the signing keys of access tokens and the state of each." example:"spendhook keys list"`
	Reencrypt keysReencryptCmd `cmd:"" help:"Encrypt every stored secret with the current encryption key." example:"spendhook keys reencrypt --dry-run"`
}

type keysRotateCmd struct {
	configFlags
}

// Run adds a key and prints all keys. Running daemons load the key by themselves.
func (c *keysRotateCmd) Run(ctx context.Context, term *stdio) error {
	return c.withKeys(ctx, term, func(signer *keys.Signer) error {
		if err := signer.Rotate(ctx); err != nil {
			return err
		}
		var ids []string
		for _, key := range signer.List() {
			ids = append(ids, key.ID)
		}
		return c.record(ctx, term, audit.Entry{Action: "keys.rotate", Target: audit.Target{Kind: tokenKey, IDs: ids}})
	})
}

// tokenKey is the kind of the target in the audit log.
const tokenKey = "token_key"

type keysRevokeCmd struct {
	configFlags

	ID string `arg:"" name:"key-id" help:"The key's id, as keys list shows it; after -- when it begins with a dash."`
}

// Run revokes a key and prints the other keys.
func (c *keysRevokeCmd) Run(ctx context.Context, term *stdio) error {
	return c.withKeys(ctx, term, func(signer *keys.Signer) error {
		if err := signer.Revoke(ctx, c.ID); err != nil {
			return err
		}
		return c.record(ctx, term, audit.Entry{Action: "keys.revoke", Target: audit.Target{Kind: tokenKey, IDs: []string{c.ID}}})
	})
}

type keysListCmd struct{ configFlags }

// Run prints the keys, in the order in which they sign.
func (c *keysListCmd) Run(ctx context.Context, term *stdio) error {
	return c.withKeys(ctx, term, func(*keys.Signer) error { return nil })
}

// withKeys opens the signing keys, calls do, and prints the keys.
func (f configFlags) withKeys(ctx context.Context, term *stdio, do func(*keys.Signer) error) error {
	store, signer, err := f.openTokenKeys(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // all writes are committed
	if err := do(signer); err != nil {
		return err
	}
	w := tabwriter.NewWriter(term.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tSTATE\tSIGNS FROM\tGONE AT")
	for _, key := range signer.List() {
		gone := "-"
		if key.GoneAt != nil {
			gone = key.GoneAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", key.ID, key.State, key.SignsFrom.UTC().Format(time.RFC3339), gone)
	}
	return w.Flush()
}
