package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"spendhook/api/gen"
)

// maxAnswer bounds what is read of one API answer, in bytes.
const maxAnswer = 16 << 20

// clientFlags are the flags of every command that talks to a running daemon.
type clientFlags struct {
	URL   string `name:"url" env:"SPENDHOOK_URL" default:"http://127.0.0.1:8080" help:"Base address of the daemon."`
	Token string `env:"SPENDHOOK_TOKEN" help:"Access token; see 'spendhook token'."`

	CACert string `name:"cacert" env:"SPENDHOOK_CACERT" placeholder:"FILE" help:"Authorities to believe the daemon's certificate by (PEM), instead of the system's."`
	Cert   string `env:"SPENDHOOK_CLIENT_CERT" placeholder:"FILE" help:"Client certificate to present (PEM)."`
	Key    string `env:"SPENDHOOK_CLIENT_KEY" placeholder:"FILE" help:"Its key."`
}

// client speaks to the API with one token. It is safe for concurrent use.
type client struct {
	base, token string
	http        *http.Client
}

func (f clientFlags) client() (*client, error) {
	if f.Token == "" {
		return nil, usageError("an access token is needed: set SPENDHOOK_TOKEN or --token (mint one with 'spendhook token')")
	}
	base := strings.TrimRight(f.URL, "/")
	if !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://") {
		return nil, usageError("--url must start with http:// or https://")
	}
	transport, err := f.transport()
	if err != nil {
		return nil, err
	}
	return &client{base: base, token: f.Token, http: &http.Client{Timeout: 30 * time.Second, Transport: transport}}, nil
}

// transport is nil, for the usual one, when the flags ask for nothing special.
func (f clientFlags) transport() (http.RoundTripper, error) {
	if f.CACert == "" && f.Cert == "" && f.Key == "" {
		return nil, nil //nolint:nilnil // http.Client has a default
	}
	config, err := f.tls()
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
	}, nil
}

func (f clientFlags) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if (f.Cert == "") != (f.Key == "") {
		return nil, usageError("--cert and --key go together")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if f.CACert != "" {
		text, err := os.ReadFile(f.CACert)
		if err != nil {
			return nil, fmt.Errorf("--cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--cacert: %s holds no certificate (PEM)", f.CACert)
		}
	}
	return config, nil
}

// problem is an answer of the API that is not a success.
type problem struct {
	gen.Problem
	retryAfter time.Duration
}

func (p *problem) Error() string {
	text := cmp.Or(p.Detail, p.Title, http.StatusText(p.Status))
	return fmt.Sprintf("%d %s: %s%s", p.Status, p.Code, text, fieldErrors(p.Errors))
}

func fieldErrors(list *[]gen.FieldError) string {
	if list == nil {
		return ""
	}
	var text strings.Builder
	for _, e := range *list {
		fmt.Fprintf(&text, "; %s: %s", e.Field, e.Message)
	}
	return text.String()
}

// temporary says that the same request may succeed later.
func (p *problem) temporary() bool {
	return p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable
}

// call sends in as JSON (nil for no body) and decodes a success into out
// (nil to ignore it). The error is a *problem for anything but 2xx.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := encode(in)
	if err != nil {
		return err
	}
	return c.send(ctx, method, path, body, out)
}

func encode(in any) ([]byte, error) {
	if in == nil {
		return nil, nil
	}
	return json.Marshal(in)
}

func (c *client) send(ctx context.Context, method, path string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("User-Agent", "spendhook/"+readBuild().version)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return decodeAnswer(resp, out)
}

func decodeAnswer(resp *http.Response, out any) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return asProblem(resp, data)
	}
	if out == nil || len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return errors.New("the answer is not what this version of the API sends; is --url a spendhook daemon?")
	}
	return nil
}

func asProblem(resp *http.Response, data []byte) *problem {
	p := &problem{}
	_ = json.Unmarshal(data, &p.Problem) // a proxy may answer without a problem document
	p.Status = resp.StatusCode
	p.Code = cmp.Or(p.Code, "HTTP_ERROR")
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		p.retryAfter = time.Duration(seconds) * time.Second
	}
	return p
}
