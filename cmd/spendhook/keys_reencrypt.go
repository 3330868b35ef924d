package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"spendhook/audit"
	"spendhook/auth/keys"
	"spendhook/internal/idempotency"
	"spendhook/internal/keycheck"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/terminal"
	"spendhook/subscribers"
)

type keysReencryptCmd struct {
	configFlags

	DryRun bool   `help:"Check every secret, print the result, and change nothing."`
	Forget string `placeholder:"KEY" help:"Id of an encryption key that is lost. The daemon then starts without it. Secrets encrypted with it stay unreadable until the key is configured again."`
}

// resealer encrypts the secrets of a store with the current key.
type resealer func(ctx context.Context, count *reseal.Count) error

// Run encrypts every stored secret with the current key. Daemons may run meanwhile. After an
// interruption it can be run again. It fails if a secret cannot be decrypted, and prints the
// ids of the missing keys.
func (c *keysReencryptCmd) Run(ctx context.Context, term *stdio) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := c.settings()
	if err != nil {
		return err
	}
	ring, err := openKeyring(cfg, seal.ReadOwnFile)
	if err != nil {
		return err
	}
	database, err := openMigrated(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = database.Close() }() // all writes are committed
	r, err := redisx.Open(ctx, attachOptions(cfg))
	if err != nil {
		return err
	}
	stores := []resealer{
		subscribers.NewStore(subscribers.StoreOptions{Client: r.Client(), Keyring: ring}).Reseal,
		idempotency.New(r.Client(), ring, nil).Reseal,
		func(ctx context.Context, count *reseal.Count) error {
			return keys.Reseal(ctx, keys.Table(database), ring, count)
		},
	}
	if c.DryRun {
		return errors.Join(c.reencrypt(ctx, term, ring, stores), r.Close())
	}
	e := audit.Entry{Action: "keys.reencrypt", Target: audit.Target{Kind: "encryption_key", IDs: []string{ring.CurrentID()}}}
	if c.Forget != "" {
		e.Detail = "forgot lost key " + c.Forget
		err = forgetLostKey(ctx, r, c.Forget)
	}
	if err == nil { // after this, no daemon starts without the current key
		err = keycheck.Verify(ctx, r.Client(), ring)
	}
	if err == nil {
		err = c.reencrypt(ctx, term, ring, stores)
	}
	if err == nil {
		err = forgetOldKeys(ctx, term, r, ring)
	}
	if err != nil {
		e.Outcome = audit.Unknown
	}
	return errors.Join(err, r.Close(), c.record(ctx, term, e))
}

// reencrypt reads all secrets twice. The second pass finds secrets that a daemon with
// the old key wrote during the first pass.
func (c *keysReencryptCmd) reencrypt(ctx context.Context, term *stdio, ring *seal.Keyring, stores []resealer) error {
	fmt.Fprintf(term.Err, "the current key is %s, all keys are %v\n", ring.CurrentID(), ring.IDs())
	resealed := int64(0)
	var last *reseal.Count
	for range 2 {
		progress := terminal.NewProgress(term.Err, "records checked", 0, time.Now)
		last = &reseal.Count{DryRun: c.DryRun, Progress: func(n *reseal.Count) { progress.Update(n.Seen, 0) }}
		for _, s := range stores {
			if err := s(ctx, last); err != nil {
				progress.Finish()
				return fmt.Errorf("after %d records were encrypted again: %w; run the command again for the others", resealed+last.Resealed, err)
			}
		}
		progress.Finish()
		resealed += last.Resealed
	}
	fmt.Fprintf(term.Out, "checked %d records, encrypted %d again\n", last.Seen, resealed)
	return reportLeft(term, last, c.DryRun)
}

// reportLeft prints the secrets that are not encrypted with the current key. It returns an error
// for them unless dryRun is set.
func reportLeft(term *stdio, count *reseal.Count, dryRun bool) error {
	total := 0
	for _, id := range slices.Sorted(maps.Keys(count.Left)) {
		n := count.Left[id]
		total += n
		if id == "" {
			fmt.Fprintf(term.Out, "%d secrets are damaged\n", n)
		} else {
			fmt.Fprintf(term.Out, "%d secrets are still encrypted with key %s\n", n, id)
		}
	}
	switch {
	case total == 0:
		fmt.Fprintln(term.Out, "all secrets are encrypted with the current key")
		return nil
	case dryRun:
		return nil
	}
	return fmt.Errorf("%d secrets cannot be decrypted: add their keys to encryption.old_keys, and run the command again", total)
}

func forgetOldKeys(ctx context.Context, term *stdio, r *redisx.Redis, ring *seal.Keyring) error {
	old := slices.DeleteFunc(ring.IDs(), func(id string) bool { return id == ring.CurrentID() })
	removed, err := keycheck.Forget(ctx, r.Client(), old...)
	for _, id := range removed {
		fmt.Fprintf(term.Out, "key %s is no longer needed: remove it from encryption.old_keys\n", id)
	}
	return err
}

// forgetLostKey lets the daemon start without a key that is lost.
func forgetLostKey(ctx context.Context, r *redisx.Redis, id string) error {
	removed, err := keycheck.Forget(ctx, r.Client(), id)
	if err == nil && len(removed) == 0 {
		err = fmt.Errorf("forget encryption key %s: Redis does not know this key", id)
	}
	return err
}
