package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

type healthcheckCmd struct {
	AdminListen  string        `env:"SPENDHOOK_ADMIN_LISTEN" default:"127.0.0.1:9090" help:"Address of the daemon's admin listener."`
	WebConfig    string        `env:"SPENDHOOK_ADMIN_WEB_CONFIG_FILE" placeholder:"FILE" help:"The listener's admin_web_config_file. If it configures TLS, the daemon must present that certificate."`
	User         string        `placeholder:"NAME" help:"User name, if the listener requires a password."`
	PasswordFile string        `placeholder:"FILE" help:"File with the password."`
	Cert         string        `placeholder:"FILE" help:"Client certificate, if the listener requires one (PEM)."`
	Key          string        `placeholder:"FILE" help:"Key of the certificate (PEM)."`
	Timeout      time.Duration `default:"3s" help:"Maximum time to wait for the answer."`
}

// Run asks /readyz and fails with its reasons when the daemon is not ready.
func (c *healthcheckCmd) Run(ctx context.Context, term *stdio) error {
	address, err := dialable(c.AdminListen)
	if err != nil {
		return usageError(err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	scheme, client := "http", http.DefaultClient
	secure, err := c.tls()
	if err != nil {
		return err
	}
	if secure != nil {
		transport := &http.Transport{TLSClientConfig: secure}
		defer transport.CloseIdleConnections()
		scheme, client = "https", &http.Client{Transport: transport}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	if c.User != "" {
		password, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return fmt.Errorf("--password-file: %w", err)
		}
		req.SetBasicAuth(c.User, strings.TrimRight(string(password), "\r\n"))
	}
	body, err := fetchReady(client, req)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(term.Out, "%s\n", body)
	return err
}

// tls returns nil for a listener without TLS. The server must present the certificate that the
// web configuration names; its host names do not matter.
func (c *healthcheckCmd) tls() (*tls.Config, error) {
	certificate, err := c.webCertificate()
	if err != nil || certificate == nil {
		return nil, err
	}
	out := &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection takes this one certificate
		VerifyConnection: func(state tls.ConnectionState) error {
			if !bytes.Equal(state.PeerCertificates[0].Raw, certificate.Bytes) {
				return errors.New("another certificate answers than --web-config names")
			}
			return nil
		},
	}
	if c.Cert != "" {
		own, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("--cert: %w", err)
		}
		out.Certificates = []tls.Certificate{own}
	}
	return out, nil
}

// webCertificate returns the listener's certificate by the web configuration; nil for a listener
// without TLS.
func (c *healthcheckCmd) webCertificate() (*pem.Block, error) {
	if c.WebConfig == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.WebConfig)
	var web struct {
		TLS *struct {
			CertFile string `yaml:"cert_file"`
			Cert     string `yaml:"cert"`
		} `yaml:"tls_server_config"`
	}
	if err == nil {
		err = yaml.Unmarshal(text, &web)
	}
	if err != nil {
		return nil, fmt.Errorf("--web-config: %w", err)
	}
	if web.TLS == nil {
		return nil, nil
	}
	certificate := []byte(web.TLS.Cert)
	if file := web.TLS.CertFile; file != "" {
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(c.WebConfig), file)
		}
		if certificate, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("cert_file of --web-config: %w", err)
		}
	}
	block, _ := pem.Decode(certificate)
	if block == nil {
		return nil, errors.New("--web-config: the certificate is no PEM")
	}
	return block, nil
}

// dialable turns a listen address into one that can be called: a listener on
// every interface is asked on loopback.
func dialable(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("admin listen address: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

func fetchReady(client *http.Client, req *http.Request) ([]byte, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.New("the admin listener does not answer: " + err.Error())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case err != nil:
	case resp.StatusCode == http.StatusUnauthorized:
		err = errors.New("the admin listener needs a password: give --user and --password-file")
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("not ready: %s", body)
	}
	return body, err
}
