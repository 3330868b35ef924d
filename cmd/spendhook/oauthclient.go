package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"spendhook/auth/clients"
	"spendhook/internal/clientcert"
	"spendhook/storage"
)

type oauthClientCmd struct {
	Create       clientCreateCmd       `cmd:"" help:"Create a client. Its secret is printed once." example:"spendhook client create --name books --company 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 --scope events:write"`
	List         clientListCmd         `cmd:"" help:"List the clients." example:"spendhook client list"`
	Show         clientShowCmd         `cmd:"" help:"Show one client." example:"spendhook client show shc_df359699887e0c772d5757c5"`
	RotateSecret clientRotateCmd       `cmd:"" help:"Create a new secret for a client, printed once. The old secret stays valid for a while." example:"spendhook client rotate-secret shc_df359699887e0c772d5757c5 --overlap 1h"`
	Certificates clientCertificatesCmd `cmd:"" help:"Replace the certificates that a client may present." example:"spendhook client certificates shc_df359699887e0c772d5757c5 --certificate client.pem"`
	Disable      clientDisableCmd      `cmd:"" help:"Disable a client. Its tokens are refused within seconds." example:"spendhook client disable shc_df359699887e0c772d5757c5"`
	Enable       clientEnableCmd       `cmd:"" help:"Enable a client that was disabled." example:"spendhook client enable shc_df359699887e0c772d5757c5"`
	Delete       clientDeleteCmd       `cmd:"" help:"Delete a client. Its tokens are refused within seconds." example:"spendhook client delete shc_df359699887e0c772d5757c5"`
}

// shownClient is a client as it is printed, without the hashes.
type shownClient struct {
	ID             string     `json:"clientId"`
	Secret         string     `json:"clientSecret,omitempty"` // when it was just made
	Name           string     `json:"name"`
	Company        *uuid.UUID `json:"companyUuid"`
	Scopes         []string   `json:"scopes"`
	Certificates   []string   `json:"certificates"`
	HasSecret      bool       `json:"hasSecret"`
	OldSecretUntil *time.Time `json:"oldSecretUntil,omitempty"`
	Disabled       bool       `json:"disabled"`
	CreatedAt      time.Time  `json:"createdAt"`
	UpdatedAt      time.Time  `json:"updatedAt"`
	LastUsedAt     *time.Time `json:"lastUsedAt"`
}

func newShownClient(c clients.Client, secret string) shownClient {
	s := shownClient{
		ID: c.ID, Secret: secret, Name: c.Name, Company: (*uuid.UUID)(c.Company), Scopes: c.Scopes, Certificates: c.Certificates,
		HasSecret: c.SecretHash != "", Disabled: c.RevokedAt != nil,
		CreatedAt: c.CreatedAt.Time, UpdatedAt: c.UpdatedAt.Time, LastUsedAt: c.LastUsedAt.Pointer(),
	}
	if c.OldSecretHash != "" && c.OldSecretUntil.After(time.Now()) {
		s.OldSecretUntil = &c.OldSecretUntil.Time
	}
	return s
}

// print writes the client as one JSON object or as lines.
func (s shownClient) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return writeLine(out, s)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(w, "%s\t%s\n", name, value) }
	line("client id", s.ID)
	if s.Secret != "" {
		line("client secret", s.Secret)
	}
	line("name", s.Name)
	line("company", s.company())
	line("scopes", strings.Join(s.Scopes, " "))
	line("certificates", cmp.Or(strings.Join(s.Certificates, " "), "-"))
	if s.OldSecretUntil != nil {
		line("old secret until", shortTime(s.OldSecretUntil))
	}
	line("state", s.state())
	line("created", shortTime(&s.CreatedAt))
	line("last used", shortTime(s.LastUsedAt))
	return w.Flush()
}

func (s shownClient) company() string {
	if s.Company == nil {
		return "-"
	}
	return s.Company.String()
}

func (s shownClient) state() string {
	if s.Disabled {
		return "disabled"
	}
	return "enabled"
}

// withClients opens the clients for the time of do.
func (f storageFlags) withClients(ctx context.Context, do func(*clients.Store) error) error {
	store, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // what was written is committed
	return do(clients.NewStore(store, nil))
}

// eachClient calls do for every client, the first created first, until it errs.
func eachClient(ctx context.Context, store *clients.Store, do func(clients.Client) error) error {
	const page = 500
	for at := ""; ; {
		list, next, err := store.List(ctx, at, page)
		if err != nil {
			return err
		}
		for _, client := range list {
			if err := do(client); err != nil {
				return err
			}
		}
		if at = next; at == "" {
			return nil
		}
	}
}

// oneClient are the flags and argument of a command about one client.
type oneClient struct {
	storageFlags

	ID   string `arg:"" name:"client-id" help:"Id of the client."`
	JSON bool   `name:"json" help:"Print a JSON object."`
}

// run prints the client that do returns, and records the action, unless it is "".
func (c oneClient) run(ctx context.Context, term *stdio, action string, do func(*clients.Store) (clients.Client, string, error)) error {
	return c.withClients(ctx, func(store *clients.Store) error {
		client, secret, err := do(store)
		if err != nil {
			return explainClient(err)
		}
		err = newShownClient(client, secret).print(term.Out, c.JSON)
		if action == "" {
			return err
		}
		return errors.Join(err, c.recordClient(ctx, term, action, client.ID, (*uuid.UUID)(client.Company)))
	})
}

func explainClient(err error) error {
	if errors.Is(err, storage.ErrNotFound) {
		return errors.New("there is no client with this id: 'spendhook client list' shows the ids")
	}
	return err
}

type clientCreateCmd struct {
	storageFlags

	Name        string     `required:"" help:"Description of the client."`
	Company     *uuid.UUID `help:"Company that the client is tied to (default: none; its requests may name any company)."`
	Scope       []string   `required:"" help:"Scope that the client may request, such as events:write; may repeat. docs/tokens.md lists them."`
	Certificate []string   `placeholder:"FILE|THUMBPRINT" help:"Certificate that the client may present, as a PEM file or as x5t#S256; may repeat."`
	NoSecret    bool       `help:"The client authenticates with a certificate only."`
	JSON        bool       `name:"json" help:"Print a JSON object."`
}

// Run creates a client and prints it, with its secret.
func (c *clientCreateCmd) Run(ctx context.Context, term *stdio) error {
	n := clients.Registration{Name: c.Name, Company: c.Company, NoSecret: c.NoSecret}
	for _, scopes := range c.Scope {
		n.Scopes = append(n.Scopes, strings.Fields(scopes)...)
	}
	var err error
	if n.Certificates, err = thumbprintsOf(c.Certificate); err != nil {
		return err
	}
	return c.withClients(ctx, func(store *clients.Store) error {
		client, secret, err := store.Create(ctx, n)
		if err != nil {
			return err
		}
		if err := newShownClient(client, secret).print(term.Out, c.JSON); err != nil {
			return errors.Join(err, store.Delete(ctx, client.ID)) // its secret was never shown
		}
		if secret != "" {
			fmt.Fprintln(term.Err, "Keep the secret: it is not shown again.")
		}
		if c.Company == nil {
			fmt.Fprintln(term.Err, "The client is tied to no company: it may name any.")
		}
		return c.recordClient(ctx, term, "client.create", client.ID, (*uuid.UUID)(client.Company))
	})
}

func thumbprintsOf(certificates []string) ([]string, error) {
	var list []string
	for _, text := range certificates {
		thumbprint, err := thumbprintOf(text)
		if err != nil {
			return nil, err
		}
		list = append(list, thumbprint)
	}
	return list, nil
}

var thumbprintForm = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// thumbprintOf is the x5t#S256 of a certificate in a PEM file, or the text
// itself when it is one.
func thumbprintOf(text string) (string, error) {
	if thumbprintForm.MatchString(text) {
		return text, nil
	}
	data, err := os.ReadFile(text)
	if err != nil {
		return "", fmt.Errorf("certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", fmt.Errorf("certificate: %s is not a PEM certificate", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("certificate: %s: %w", text, err)
	}
	return clientcert.Thumbprint(cert), nil
}

type clientListCmd struct {
	storageFlags

	JSON bool `name:"json" help:"Print one JSON object per line."`
}

// Run prints all clients, the first created first.
func (c *clientListCmd) Run(ctx context.Context, term *stdio) error {
	return c.withClients(ctx, func(store *clients.Store) error {
		if c.JSON {
			return eachClient(ctx, store, func(s clients.Client) error { return writeLine(term.Out, newShownClient(s, "")) })
		}
		w := tabwriter.NewWriter(term.Out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "CLIENT\tNAME\tCOMPANY\tSTATE\tLAST USED\tSCOPES")
		err := eachClient(ctx, store, func(client clients.Client) error {
			s := newShownClient(client, "")
			_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n",
				s.ID, s.Name, s.company(), s.state(), shortTime(s.LastUsedAt), strings.Join(s.Scopes, " "))
			return err
		})
		return errors.Join(err, w.Flush())
	})
}

type clientShowCmd struct{ oneClient }

// Run prints the client.
func (c *clientShowCmd) Run(ctx context.Context, term *stdio) error {
	return c.run(ctx, term, "", func(store *clients.Store) (clients.Client, string, error) {
		client, err := store.Get(ctx, c.ID)
		return client, "", err
	})
}

type clientRotateCmd struct {
	oneClient

	Overlap time.Duration `default:"24h" help:"How long the old secret stays valid."`
}

// Run prints the client with its new secret.
func (c *clientRotateCmd) Run(ctx context.Context, term *stdio) error {
	return c.run(ctx, term, "client.rotate-secret", func(store *clients.Store) (clients.Client, string, error) {
		return store.RotateSecret(ctx, c.ID, c.Overlap)
	})
}

type clientCertificatesCmd struct {
	oneClient

	Certificate []string `xor:"list" placeholder:"FILE|THUMBPRINT" help:"Certificate that the client may present, as a PEM file or as x5t#S256; may repeat. Replaces all earlier ones."`
	Any         bool     `xor:"list" help:"Instead of --certificate: allow any certificate. The client then authenticates with its secret."`
}

// Run prints the client with its new list.
func (c *clientCertificatesCmd) Run(ctx context.Context, term *stdio) error {
	if len(c.Certificate) == 0 && !c.Any {
		return usageError("--certificate is needed, or --any")
	}
	list, err := thumbprintsOf(c.Certificate)
	if err != nil {
		return err
	}
	return c.run(ctx, term, "client.certificates", func(store *clients.Store) (clients.Client, string, error) {
		client, err := store.SetCertificates(ctx, c.ID, list)
		return client, "", err
	})
}

type clientDisableCmd struct{ oneClient }

// Run prints the client, disabled.
func (c *clientDisableCmd) Run(ctx context.Context, term *stdio) error {
	return c.setDisabled(ctx, term, true)
}

type clientEnableCmd struct{ oneClient }

// Run prints the client, enabled.
func (c *clientEnableCmd) Run(ctx context.Context, term *stdio) error {
	return c.setDisabled(ctx, term, false)
}

func (c oneClient) setDisabled(ctx context.Context, term *stdio, disabled bool) error {
	action := "client.enable"
	if disabled {
		action = "client.disable"
	}
	return c.run(ctx, term, action, func(store *clients.Store) (clients.Client, string, error) {
		client, err := store.SetDisabled(ctx, c.ID, disabled)
		return client, "", err
	})
}

type clientDeleteCmd struct {
	storageFlags

	ID string `arg:"" name:"client-id" help:"Id of the client."`
}

// Run deletes the client.
func (c *clientDeleteCmd) Run(ctx context.Context, term *stdio) error {
	return c.withClients(ctx, func(store *clients.Store) error {
		if err := store.Delete(ctx, c.ID); err != nil {
			return explainClient(err)
		}
		_, err := fmt.Fprintln(term.Out, "deleted")
		return errors.Join(err, c.recordClient(ctx, term, "client.delete", c.ID, nil))
	})
}
