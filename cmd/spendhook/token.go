package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/auth"
)

type tokenCmd struct {
	configFlags

	Company *uuid.UUID    `help:"Company that the token is tied to; without it the token needs the scope platform or operator to see any."`
	Scope   string        `required:"" help:"Scopes, separated by spaces, such as 'events:write deliveries:read'."`
	TTL     time.Duration `name:"ttl" default:"1h" help:"How long the token is valid."`
	Subject string        `default:"cli" help:"Whom the token names as its user."`
}

// Run prints a token signed by the key in the data directory. The key is made
// when there is none yet, so that a token can be minted before the first start.
func (c *tokenCmd) Run(term *console) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	keys, err := openKeys(cfg)
	if err != nil {
		return err
	}
	token, err := keys.Mint(auth.Grant{
		Subject: c.Subject, Company: c.Company, Scopes: strings.Fields(c.Scope), TTL: c.TTL,
	}, time.Now())
	if err != nil {
		return usageError(err.Error())
	}
	_, err = fmt.Fprintln(term.out, token)
	return err
}
