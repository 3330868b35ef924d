package contacts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"slices"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"spendhook/internal/secret"
)

// SMTP says how mail is sent.
type SMTP struct {
	Host     string
	Port     int
	Username string // "": without authentication
	Password secret.Text
	From     string      // an address, also with a name
	Security string      // starttls, tls or none
	TLS      *tls.Config // nil: the system's roots
}

// Mailer sends mail through an SMTP server. It is safe for concurrent use.
type Mailer struct {
	smtp    SMTP
	tls     *tls.Config
	options []gomail.Option
	domain  string // of From
}

// NewMailer returns a Mailer; it does not connect yet.
func NewMailer(s SMTP) (*Mailer, error) {
	from, err := mail.ParseAddress(s.From)
	if err != nil {
		return nil, fmt.Errorf("smtp.from: %w", err)
	}
	config := &tls.Config{}
	if s.TLS != nil {
		config = s.TLS.Clone()
	}
	config.ServerName, config.MinVersion = s.Host, tls.VersionTLS12
	options := []gomail.Option{gomail.WithPort(s.Port), gomail.WithTimeout(timeout), gomail.WithTLSConfig(config)}
	switch s.Security {
	case "tls":
		options = append(options, gomail.WithSSL())
	case "none":
		options = append(options, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	if s.Username != "" {
		options = append(options, gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername(s.Username), gomail.WithPassword(s.Password.Reveal()))
	}
	m := &Mailer{smtp: s, tls: config, options: options}
	_, m.domain, _ = strings.Cut(from.Address, "@")
	_, err = gomail.NewClient(s.Host, options...)
	return m, err
}

// client returns a client whose connection is closed when ctx ends: go-mail heeds ctx only until it is connected.
func (m *Mailer) client(ctx context.Context) (*gomail.Client, error) {
	dial := gomail.WithDialContextFunc(func(dialing context.Context, network, address string) (net.Conn, error) {
		var dialer net.Dialer
		conn, err := dialer.DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		if m.smtp.Security == "tls" {
			return tls.Client(conn, m.tls), nil
		}
		return conn, nil
	})
	return gomail.NewClient(m.smtp.Host, append(slices.Clone(m.options), dial)...)
}

// Check connects to the server, with TLS and login as they are configured. It sends nothing.
func (m *Mailer) Check(ctx context.Context) error {
	c, err := m.client(ctx)
	if err != nil {
		return err
	}
	if err := c.DialWithContext(ctx); err != nil {
		return err
	}
	return c.Close()
}

// send sends a message to an address. The error is errRefused if the server refused this address or message for good,
// errDeferred if it has not taken the message for now, errUnreachable if no mail can be sent now. Errors have nothing of the address.
func (m *Mailer) send(ctx context.Context, to string, content message) error {
	msg := gomail.NewMsg()
	if err := errors.Join(msg.From(m.smtp.From), msg.To(to)); err != nil {
		return errRefused
	}
	msg.Subject(content.subject)
	msg.SetBodyString(gomail.TypeTextPlain, content.text)
	msg.SetMessageIDWithValue(content.id + "@" + m.domain)
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	msg.SetGenHeader(gomail.HeaderListUnsubscribe, "<"+content.unsubscribe+">")
	msg.SetGenHeader(gomail.HeaderListUnsubscribePost, "List-Unsubscribe=One-Click")
	c, err := m.client(ctx)
	if err != nil {
		return err
	}
	err = c.DialAndSendWithContext(ctx, msg)
	if err == nil || msg.IsDelivered() { // it was taken, and the connection failed afterwards
		return nil
	}
	failed, sending := errors.AsType[*gomail.SendError](err)
	if !sending {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	ofMessage := failed.Reason == gomail.ErrSMTPRcptTo || failed.Reason == gomail.ErrSMTPData || failed.Reason == gomail.ErrSMTPDataClose
	if ofMessage && failed.ErrorCode() >= 500 {
		return fmt.Errorf("%w: %s: %d", errRefused, failed.Reason, failed.ErrorCode())
	}
	if failed.Reason == gomail.ErrSMTPMailFrom || failed.Reason == gomail.ErrSMTPRcptTo {
		return fmt.Errorf("%w: %s: %d", errDeferred, failed.Reason, failed.ErrorCode())
	}
	return fmt.Errorf("%s: %d", failed.Reason, failed.ErrorCode())
}
