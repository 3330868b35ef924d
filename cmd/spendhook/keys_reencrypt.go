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
	"spendhook/config"
	"spendhook/internal/datadir"
	"spendhook/internal/idempotency"
	"spendhook/internal/keycheck"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/terminal"
	"spendhook/subscribers"
)

type keysReencryptCmd struct {
	storageFlags

	Redis  string `placeholder:"URL" help:"'embedded', or the URL of the daemon's Redis."`
	DryRun bool   `help:"Print what would be done, and do nothing."`
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
	cfg, err := c.loadWith(map[string]string{"redis": c.Redis, "storage.url": c.Storage})
	if err != nil {
		return err
	}
	if err := datadir.Check(cfg.DataDir); err != nil {
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
	defer func() { _ = database.Close() }() // what was written is committed
	r, err := redisx.Open(ctx, attachOptions(cfg))
	if err != nil {
		return err
	}
	stores := []resealer{
		subscribers.NewStore(subscribers.StoreOptions{Client: r.Client(), Keyring: ring}).Reseal,
		idempotency.New(idempotency.Options{Client: r.Client(), Keyring: ring}).Reseal,
		func(ctx context.Context, count *reseal.Count) error {
			return keys.Reseal(ctx, keys.Table(database), ring, count)
		},
	}
	err = c.begin(ctx, r, ring)
	if err == nil {
		err = c.reencrypt(ctx, term, ring, stores)
	}
	if err == nil && !c.DryRun {
		err = forgetOldKeys(ctx, term, r, ring)
	}
	return errors.Join(err, r.Close(), c.record(ctx, cfg, term, ring.CurrentID(), err))
}

// record writes an audit entry.
func (c *keysReencryptCmd) record(ctx context.Context, cfg *config.Config, term *stdio, key string, failure error) error {
	if c.DryRun {
		return nil
	}
	e := audit.Entry{Action: "keys.reencrypt", Target: audit.Target{Kind: "encryption_key", IDs: []string{key}}}
	if c.Forget != "" {
		e.Detail = "forgot lost key " + c.Forget
	}
	if failure != nil {
		e.Outcome = audit.Unknown
	}
	return recordChange(ctx, cfg, term.Err, e)
}

// begin stores the id of the current key in Redis before anything is encrypted with it. From
// then on no daemon starts without this key.
func (c *keysReencryptCmd) begin(ctx context.Context, r *redisx.Redis, ring *seal.Keyring) error {
	if c.DryRun {
		return nil
	}
	if c.Forget != "" {
		if err := keycheck.Drop(ctx, r.Client(), c.Forget); err != nil {
			return err
		}
	}
	return keycheck.Verify(ctx, r.Client(), ring)
}

// reencrypt goes through all secrets twice. The second pass finds secrets that a daemon with
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
	dropped, err := keycheck.Forget(ctx, r.Client(), ring)
	for _, id := range dropped {
		fmt.Fprintf(term.Out, "key %s is no longer needed: remove it from encryption.old_keys\n", id)
	}
	return err
}
