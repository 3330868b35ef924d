package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"spendhook/auth/clients"
	"spendhook/internal/datadir"
	"spendhook/internal/seal"
)

type initCmd struct {
	configFlags

	Dir     string    `default:"./spendhook-init" help:"Directory of the certificates and the key; created if missing."`
	Host    []string  `default:"localhost,127.0.0.1,::1" help:"DNS names and IP addresses of the server."`
	Client  string    `default:"first" help:"Name of the client."`
	Company uuid.UUID `default:"de7e109e-0000-4000-8000-000000000001" help:"Company that the client is tied to."`
}

// Run creates missing files and keys, and prints the client. A second run changes nothing
// while the certificates are valid.
func (c *initCmd) Run(ctx context.Context, term *stdio) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if err := datadir.Make(c.Dir); err != nil {
		return err
	}
	certs := &certsDevCmd{Dir: c.Dir, Host: c.Host}
	if err := errors.Join(certs.Validate(), certs.renew(time.Now())); err != nil {
		return err
	}
	key := filepath.Join(c.Dir, encryptionKeyFile)
	if _, err := seal.OpenFile(key); err != nil {
		return fmt.Errorf("encryption key: %w", err)
	}
	store, err := openMigrated(ctx, cfg) // PostgreSQL needs no data directory
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // all writes are committed
	client, made, err := firstClient(ctx, clients.NewStore(store, nil), c.Client, c.Company, certs.path("client.pem"))
	if err != nil {
		return err
	}
	if made {
		err = c.record(ctx, term, clientCreated(client))
	}
	_, printed := fmt.Fprintf(term.Out, initUse, c.Dir, key, client.ID, certs.path("ca.pem"), certs.path("client.pem"), certs.path("client-key.pem"),
		net.JoinHostPort(c.Host[0], "8443"))
	return errors.Join(err, printed)
}

const initUse = `certificates in %[1]s, for 90 days
encryption key %[2]s: keep a copy of this file
client %[3]s

# get a token, on a machine that reaches the daemon
curl -sS --cacert %[4]s --cert %[5]s --key %[6]s https://%[7]s/oauth/token -d grant_type=client_credentials -d client_id=%[3]s
`
