// Package smtptest starts an SMTP server for tests, with TLS and authentication.
package smtptest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/mail"
	"slices"
	"sync"
	"testing"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// Credentials of the server.
const (
	Username = "spendhook"
	Password = "hunter22"
)

// Host is the name in the server's certificate.
const Host = "127.0.0.1"

// Server is an SMTP server on loopback, which requires STARTTLS and authentication. It ends with the test.
type Server struct {
	Port        int
	Certificate []byte         // DER
	Roots       *x509.CertPool // of the certificate

	address string
	config  *tls.Config

	mu     sync.Mutex
	server *smtp.Server
	all    []Message
	refuse error // of each recipient
	taken  func(Message)
}

// Message is a message that the server has taken.
type Message struct {
	From, To string
	Header   mail.Header
	Raw      []byte
}

// New starts a Server.
func New(tb testing.TB) *Server {
	tb.Helper()
	web := httptest.NewTLSServer(nil) // for its certificate
	web.Close()
	s := &Server{Certificate: web.Certificate().Raw, Roots: x509.NewCertPool(), config: &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}}
	s.Roots.AddCert(web.Certificate())
	s.address = Host + ":0"
	s.Start(tb)
	tb.Cleanup(s.Stop)
	return s
}

// Start starts the server again, at the same port.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", s.address)
	if err != nil {
		tb.Fatal(err)
	}
	s.address, s.Port = l.Addr().String(), l.Addr().(*net.TCPAddr).Port
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &session{server: s}, nil }))
	server.Domain, server.TLSConfig, server.ErrorLog = "localhost", s.config, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.mu.Lock()
	s.server = server
	s.mu.Unlock()
	go func() { _ = server.Serve(l) }() // ends with Stop
}

// Stop closes the server and its connections.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.server.Close() // stopped already
}

// Refuse has the server refuse each recipient with an error; nil ends that. The error may be ErrPermanent.
func (s *Server) Refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

// OnMessage has a function called with each message, before the sender is told that it was taken.
func (s *Server) OnMessage(taken func(Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = taken
}

// ErrPermanent refuses a recipient for good.
var ErrPermanent error = &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such user"}

// Messages returns what the server has taken, oldest first.
func (s *Server) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

type session struct {
	server   *Server
	known    bool
	from, to string
}

var errLogin = errors.New("log in first")

func (c *session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (c *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, username, password string) error {
		if username != Username || password != Password {
			return smtp.ErrAuthFailed
		}
		c.known = true
		return nil
	}), nil
}

func (c *session) Mail(from string, _ *smtp.MailOptions) error {
	if !c.known {
		return errLogin
	}
	c.from = from
	return nil
}

func (c *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.to = to
	return c.server.refuse
}

func (c *session) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	parsed, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	m := Message{From: c.from, To: c.to, Header: parsed.Header, Raw: raw}
	c.server.mu.Lock()
	c.server.all = append(c.server.all, m)
	taken := c.server.taken
	c.server.mu.Unlock()
	if taken != nil {
		taken(m)
	}
	return nil
}

func (c *session) Reset()        {}
func (c *session) Logout() error { return nil }
