package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

type healthcheckCmd struct {
	AdminListen string        `env:"SPENDHOOK_ADMIN_LISTEN" default:"127.0.0.1:9090" help:"Address of the daemon's admin listener."`
	Timeout     time.Duration `default:"3s" help:"How long to wait for the answer."`
}

// Run asks /readyz and fails with its reasons when the daemon is not ready.
func (c *healthcheckCmd) Run(ctx context.Context, term *console) error {
	address, err := dialable(c.AdminListen)
	if err != nil {
		return usageError(err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	body, err := fetchReady(ctx, "http://"+address+"/readyz")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(term.out, "%s\n", body)
	return err
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

func fetchReady(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, errors.New("the admin listener does not answer: " + err.Error())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("not ready: %s", body)
	}
	return body, err
}
