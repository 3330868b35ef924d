package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/clienttls"
	"spendhook/internal/terminal"
)

const localDaemon = "http://127.0.0.1:8080"

// Connection has the flags for the daemon's address and the credentials. Secrets are never
// flags, because other users of the machine can see them.
type Connection struct {
	Profile     string        `env:"SPENDHOOK_PROFILE" predictor:"profile" default:"default" help:"Profile saved by 'spendhook login'."`
	URL         string        `name:"url" env:"SPENDHOOK_URL" help:"Base URL of the daemon (default: that of the profile, or http://127.0.0.1:8080)."`
	TokenFile   string        `env:"SPENDHOOK_TOKEN_FILE" placeholder:"FILE|-" help:"File with an access token, instead of the profile's credentials. SPENDHOOK_TOKEN holds a token itself."`
	CACert      string        `name:"cacert" env:"SPENDHOOK_CACERT" placeholder:"FILE" help:"CA certificates that the client trusts (PEM), instead of the system's."`
	Cert        string        `env:"SPENDHOOK_CLIENT_CERT" placeholder:"FILE" help:"Client certificate to present (PEM)."`
	Key         string        `env:"SPENDHOOK_CLIENT_KEY" placeholder:"FILE" help:"Key of the certificate (PEM)."`
	CompanyUUID *uuid.UUID    `name:"company-uuid" env:"SPENDHOOK_COMPANY_UUID" help:"Company to act for, if the token is not tied to one."`
	RetryFor    time.Duration `default:"30s" help:"How long to retry while the daemon is unreachable or answers 429 or 503."`
}

// group has the flags that all commands on one resource share.
type group struct {
	Connection
	output
}

// ProvideSession makes the session that kong passes to the commands of the group.
func (g *group) ProvideSession(term *Terminal) (*session, error) {
	api, o, err := g.open(term)
	if err != nil {
		return nil, err
	}
	return &session{ClientWithResponses: api, connection: &g.Connection, options: o, output: g.output, term: term}, nil
}

// Open makes a client from the flags, the environment and the profile. Call it once: it may read
// the token from standard input.
func (c *Connection) Open(term *Terminal) (*client.ClientWithResponses, error) {
	api, _, err := c.open(term)
	return api, err
}

func (c *Connection) open(term *Terminal) (*client.ClientWithResponses, client.Options, error) {
	o, err := c.options(term)
	if err != nil {
		return nil, o, err
	}
	if o.Token == "" && o.Credentials == nil {
		return nil, o, UsageError("you are not logged in: run 'spendhook login', or set SPENDHOOK_TOKEN (mint a token with 'spendhook token')")
	}
	api, err := client.New(c.URL, o)
	if err != nil {
		return nil, o, UsageError("--url: " + err.Error())
	}
	return api, o, nil
}

// options combines flags, environment and profile, in this order of precedence.
func (c *Connection) options(term *Terminal) (client.Options, error) {
	o := client.Options{Insecure: true /* warnOfPlain tells */, UserAgent: "spendhook/" + term.Version, RetryFor: cmp.Or(c.RetryFor, -1), Retrying: c.retrying(term)}
	p, err := readProfile(c.Profile)
	if err != nil {
		return o, err
	}
	known := c.URL == "" || strings.TrimRight(c.URL, "/") == p.URL // credentials of one daemon must not be sent to another
	c.URL = cmp.Or(c.URL, p.URL, localDaemon)
	warnOfPlain(term, c.URL, "token")
	if known {
		c.CACert, c.Cert, c.Key = cmp.Or(c.CACert, p.CACert), cmp.Or(c.Cert, p.Cert), cmp.Or(c.Key, p.Key)
		c.CompanyUUID = cmp.Or(c.CompanyUUID, p.CompanyUUID)
	}
	if o.Transport, err = c.Transport(); err != nil {
		return o, err
	}
	switch token := os.Getenv("SPENDHOOK_TOKEN"); {
	case c.TokenFile != "":
		o.Token, err = readSecret(c.TokenFile, term.In)
	case token != "":
		o.Token = token
	case os.Getenv("SPENDHOOK_CLIENT_ID") != "":
		o.Credentials = &client.Credentials{ID: os.Getenv("SPENDHOOK_CLIENT_ID"), Secret: os.Getenv("SPENDHOOK_CLIENT_SECRET")}
	case known && p.ClientID != "":
		o.Credentials = p.credentials(c.Profile, term.Err)
	}
	return o, err
}

// warnOfPlain warns of what goes over plain http to another machine.
func warnOfPlain(term *Terminal, raw, what string) {
	if host := plainHost(raw); host != "" {
		fmt.Fprintf(term.Err, "warning: the %s goes to %s in clear, where others can read it: use https\n", what, terminal.Escape(host, ""))
	}
}

// plainHost returns the host of a plain http URL, unless it is this machine; else "".
func plainHost(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" || u.Hostname() == "localhost" {
		return ""
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsLoopback() {
		return ""
	}
	return u.Host
}

// retrying reports once that the daemon has not answered for about a second.
func (c *Connection) retrying(term *Terminal) func(int, error) {
	var once sync.Once
	return func(attempts int, err error) {
		if attempts >= 3 {
			once.Do(func() { fmt.Fprintf(term.Err, "%v; retrying for %v\n", err, c.RetryFor) })
		}
	}
}

// readSecret reads a file, or standard input for "-".
func readSecret(name string, stdin io.Reader) (string, error) {
	in, _, err := terminal.Open(name, stdin)
	if err != nil {
		return "", err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, 64<<10))
	return strings.TrimSpace(string(text)), err
}

// Transport returns a transport with the files of the TLS flags. Without these flags it returns
// nil, which means the default transport.
func (c *Connection) Transport() (http.RoundTripper, error) {
	files := clienttls.Files{CA: c.CACert, Cert: c.Cert, Key: c.Key}
	if files == (clienttls.Files{}) {
		return nil, nil //nolint:nilnil // http.Client has a default
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, UsageError("--cert and --key go together: give both or neither")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if err := files.Apply(transport.TLSClientConfig); err != nil {
		return nil, fmt.Errorf("--cacert, --cert, --key: %w", err)
	}
	return transport, nil
}

// accept requests a media type other than JSON.
func accept(mediaType string) client.RequestEditorFn {
	return func(_ context.Context, req *http.Request) error {
		req.Header.Set("Accept", mediaType)
		return nil
	}
}
