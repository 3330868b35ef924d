package main

import (
	"context"
	"crypto/tls"
	"fmt"

	"spendhook/config"
	"spendhook/contacts"
	"spendhook/internal/clienttls"
)

// newMailer returns what sends mail to contacts; nil without smtp.host.
func newMailer(cfg *config.Config) (*contacts.Mailer, error) {
	s := cfg.SMTP
	if s.Host == "" {
		return nil, nil //nolint:nilnil // no mail is sent
	}
	var trust tls.Config
	if err := (&clienttls.Files{CA: s.CAFile}).Apply(&trust); err != nil {
		return nil, fmt.Errorf("smtp.ca_file: %w", err)
	}
	return contacts.NewMailer(contacts.SMTP{
		Host: s.Host, Port: s.Port, Username: s.Username, Password: s.Password, From: s.From, Security: s.TLS, TLS: &trust,
	})
}

// mail checks the SMTP server.
func (d *doctor) mail(ctx context.Context) {
	mailer, err := newMailer(d.cfg)
	switch {
	case err != nil:
		d.problem("correct the settings of smtp", "%v", err)
	case mailer == nil:
		d.okText = "not configured: contacts of subscribers can be chats only (smtp.host)"
	default:
		if err := mailer.Check(ctx); err != nil {
			d.problem("correct smtp.host, smtp.port, smtp.tls, the CA or the login; until then mail to contacts of subscribers waits", "%v", err)
		}
	}
}
