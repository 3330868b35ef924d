package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"spendhook/internal/clienttls"
)

type healthcheckCmd struct {
	AdminListen  string        `env:"SPENDHOOK_ADMIN_LISTEN" default:"127.0.0.1:9090" help:"Address of the daemon's admin listener."`
	CACert       string        `name:"cacert" placeholder:"FILE" help:"CA certificates of the listener's certificate, if the listener has TLS (PEM)."`
	User         string        `placeholder:"NAME" and:"password" help:"User name, if the listener requires a password."`
	PasswordFile []byte        `placeholder:"FILE" and:"password" type:"filecontent" help:"File with the password."`
	Cert         string        `placeholder:"FILE" and:"certificate" help:"Client certificate, if the listener requires one (PEM)."`
	Key          string        `placeholder:"FILE" and:"certificate" help:"Key of the certificate (PEM)."`
	Timeout      time.Duration `default:"3s" help:"Maximum time to wait for the answer."`
}

// Run requests /readyz. It fails with the reasons if the daemon is not ready.
func (c *healthcheckCmd) Run(ctx context.Context, term *stdio) error {
	address, err := dialable(c.AdminListen)
	if err != nil {
		return usageError(err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	scheme := "http"
	if c.CACert != "" {
		scheme = "https"
		if err := (&clienttls.Files{CA: c.CACert, Cert: c.Cert, Key: c.Key}).Apply(transport.TLSClientConfig); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	if c.User != "" {
		req.SetBasicAuth(c.User, strings.TrimRight(string(c.PasswordFile), "\r\n"))
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return errors.New("the admin listener does not answer: " + err.Error()) // err is not wrapped, so that the exit code is 1: Docker defines no other failure code
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusUnauthorized:
		return errors.New("the admin listener needs a password: give --user and --password-file")
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("not ready: %s", body)
	}
	_, err = fmt.Fprintf(term.Out, "%s\n", body)
	return err
}

// dialable returns the address at which this machine reaches a listener. A listener on all
// interfaces is reached at loopback.
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
