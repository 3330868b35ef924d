package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"spendhook/api/client"
)

// clientFlags are the flags of every command that talks to a running daemon.
type clientFlags struct {
	URL   string `name:"url" env:"SPENDHOOK_URL" default:"http://127.0.0.1:8080" help:"Base address of the daemon."`
	Token string `env:"SPENDHOOK_TOKEN" help:"Access token; see 'spendhook token'."`

	ClientID     string `env:"SPENDHOOK_CLIENT_ID" help:"OAuth client that gets access tokens, in place of a token."`
	ClientSecret string `env:"SPENDHOOK_CLIENT_SECRET" help:"Its secret."`

	CACert string `name:"cacert" env:"SPENDHOOK_CACERT" placeholder:"FILE" help:"Authorities to believe the daemon's certificate by (PEM), instead of the system's."`
	Cert   string `env:"SPENDHOOK_CLIENT_CERT" placeholder:"FILE" help:"Client certificate to present (PEM)."`
	Key    string `env:"SPENDHOOK_CLIENT_KEY" placeholder:"FILE" help:"Its key."`
}

// client connects as the flags say; adjust may change the options.
func (f clientFlags) client(adjust ...func(*client.Options)) (*client.ClientWithResponses, error) {
	if f.Token == "" && f.ClientID == "" {
		return nil, usageError("an access token is needed: set SPENDHOOK_TOKEN or --token (mint one with 'spendhook token')")
	}
	transport, err := f.transport()
	if err != nil {
		return nil, err
	}
	o := client.Options{Token: f.Token, Transport: transport, UserAgent: "spendhook/" + readBuild().version}
	if f.Token == "" {
		o.Credentials = &client.Credentials{ID: f.ClientID, Secret: f.ClientSecret}
	}
	for _, change := range adjust {
		change(&o)
	}
	api, err := client.New(f.URL, o)
	if err != nil {
		return nil, usageError("--url: " + err.Error())
	}
	return api, nil
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
