package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"spendhook/auth/clients"
	"spendhook/internal/clientcert"
)

type clientCmd struct {
	Create clientCreateCmd `cmd:"" help:"Create a client. Its secret is printed once." example:"spendhook client create --name books --company 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 --scope events:write"`
}

// createdClient is what --json prints.
type createdClient struct {
	ID     string `json:"clientId"`
	Secret string `json:"clientSecret,omitempty"`
}

type clientCreateCmd struct {
	configFlags

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
	if n.Certificates, err = clientcert.ThumbprintsOf(c.Certificate); err != nil {
		return err
	}
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // all writes are committed
	store := clients.NewStore(db, nil)
	client, secret, err := store.Create(ctx, n)
	if err != nil {
		return err
	}
	if c.JSON {
		err = writeLine(term.Out, createdClient{client.ID, secret})
	} else {
		_, err = fmt.Fprintf(term.Out, "client id      %s\nclient secret  %s\n", client.ID, cmp.Or(secret, "-"))
	}
	if err != nil {
		return errors.Join(err, store.Delete(ctx, client.ID)) // its secret was never shown
	}
	if secret != "" {
		fmt.Fprintln(term.Err, "Keep the secret: it is not shown again.")
	}
	if c.Company == nil {
		fmt.Fprintln(term.Err, "The client is tied to no company: its requests may name any company.")
	}
	return c.record(ctx, term, clientCreated(client))
}
