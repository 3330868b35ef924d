package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"

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
	storageFlags

	JSON bool `name:"json" help:"Print one JSON object per line."`
}

// Run adds a key and prints all keys. Running daemons load the key by themselves.
func (c *keysRotateCmd) Run(ctx context.Context, term *stdio) error {
	store, keys, err := c.openTokenKeys(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // what was written is committed
	if err := keys.Rotate(ctx); err != nil {
		return err
	}
	list := keys.List()
	e := audit.Entry{Action: "keys.rotate", Target: audit.Target{Kind: tokenKey}}
	for _, key := range list {
		e.Target.IDs = append(e.Target.IDs, key.ID)
	}
	return errors.Join(printKeys(term.Out, list, c.JSON), c.record(ctx, term, e))
}

// tokenKey is the kind of the target in the audit log.
const tokenKey = "token_key"

type keysRevokeCmd struct {
	storageFlags

	ID   string `arg:"" name:"key-id" help:"The key's id, as keys list shows it; after -- when it begins with a dash."`
	JSON bool   `name:"json" help:"Print one JSON object per line."`
}

// Run revokes a key and prints the other keys.
func (c *keysRevokeCmd) Run(ctx context.Context, term *stdio) error {
	store, keys, err := c.openTokenKeys(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // what was written is committed
	if err := keys.Revoke(ctx, c.ID); err != nil {
		return err
	}
	e := audit.Entry{Action: "keys.revoke", Target: audit.Target{Kind: tokenKey, IDs: []string{c.ID}}}
	return errors.Join(printKeys(term.Out, keys.List(), c.JSON), c.record(ctx, term, e))
}

type keysListCmd struct {
	storageFlags

	JSON bool `name:"json" help:"Print one JSON object per line."`
}

// Run prints the keys, in the order in which they sign.
func (c *keysListCmd) Run(ctx context.Context, term *stdio) error {
	store, keys, err := c.openTokenKeys(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // what was written is committed
	return printKeys(term.Out, keys.List(), c.JSON)
}

func printKeys(out io.Writer, list []keys.Info, asJSON bool) error {
	if asJSON {
		for _, key := range list {
			if err := writeLine(out, key); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tSTATE\tSIGNS FROM\tGONE AT")
	for _, key := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", key.ID, key.State, shortTime(&key.SignsFrom), shortTime(key.GoneAt))
	}
	return w.Flush()
}

// shortTime formats a time to the second, and nil as "-".
func shortTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// writeLine writes v as one line of JSON.
func writeLine(out io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return err
}
