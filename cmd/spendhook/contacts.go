package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"spendhook/config"
	"spendhook/contacts"
	"spendhook/internal/clienttls"
	"spendhook/subscribers"
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

// disableAfter returns how long a subscriber fails before it is disabled, as the dispatcher has it.
func disableAfter(cfg *config.Config) func(*subscribers.Subscriber) time.Duration {
	return func(s *subscribers.Subscriber) time.Duration {
		return max(cfg.Delivery.DisableAfter, time.Duration(float64(s.RetryTime())*(1+cfg.Delivery.Jitter)))
	}
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
