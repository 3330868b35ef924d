package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"spendhook/dispatcher/webhook/signature"
)

type signCmd struct {
	SecretFile string `placeholder:"FILE" help:"File with the signing secret (whsec_…). SPENDHOOK_SECRET holds a secret itself."`
	ID         string `name:"id" required:"" help:"The webhook-id."`
	Timestamp  int64  `help:"The webhook-timestamp in unix seconds (default: now)."`
}

// Run prints the three headers that go with the body on standard input.
func (c *signCmd) Run(term *stdio) error {
	secret, err := oneSecret(c.SecretFile)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(term.In)
	if err != nil {
		return err
	}
	if c.Timestamp == 0 {
		c.Timestamp = time.Now().Unix()
	}
	signature, err := signature.V1(secret, c.ID, c.Timestamp, body)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(term.Out, "webhook-id: %s\nwebhook-timestamp: %d\nwebhook-signature: %s\n",
		c.ID, c.Timestamp, signature)
	return err
}

type verifyCmd struct {
	SecretFile string        `placeholder:"FILE" help:"File with the signing secret (whsec_…) or the public key (whpk_…). SPENDHOOK_SECRET holds the secret or the key itself."`
	ID         string        `name:"id" required:"" help:"The webhook-id received."`
	Timestamp  int64         `required:"" help:"The webhook-timestamp received, in unix seconds."`
	Signature  string        `required:"" help:"The webhook-signature received."`
	Tolerance  time.Duration `default:"5m" help:"Maximum difference between the timestamp and now; 0 disables the check."`
}

// Run fails unless the signature is valid for the body on standard input.
func (c *verifyCmd) Run(term *stdio) error {
	secret, err := oneSecret(c.SecretFile)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(term.In)
	if err != nil {
		return err
	}
	h := http.Header{}
	h.Set(signature.HeaderID, c.ID)
	h.Set(signature.HeaderTimestamp, strconv.FormatInt(c.Timestamp, 10))
	h.Set(signature.HeaderSignature, c.Signature)
	now := time.Now()
	if c.Tolerance == 0 {
		now = time.Unix(c.Timestamp, 0)
	}
	if err := signature.Verify(secret, h, body, c.Tolerance, now); err != nil {
		return fmt.Errorf("not verified: %w", err)
	}
	_, err = fmt.Fprintln(term.Out, "verified")
	return err
}

// oneSecret reads a secret from a file or the environment. A secret is never a flag, because other
// users of the machine can see flags.
func oneSecret(file string) (string, error) {
	var files []string
	if file != "" {
		files = []string{file}
	}
	secrets, err := readSecrets(files)
	if err == nil && len(secrets) == 0 {
		err = usageError("no secret: give --secret-file, or set SPENDHOOK_SECRET")
	}
	if err != nil {
		return "", err
	}
	return secrets[0], nil
}

// readSecrets reads the secrets or public keys of the files. Without files, it returns that of the
// environment. One that is too short is an error: with an empty secret anybody can sign.
func readSecrets(files []string) (secrets []string, err error) {
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, strings.TrimSpace(string(text)))
	}
	if secret := os.Getenv("SPENDHOOK_SECRET"); secret != "" && len(files) == 0 {
		secrets = []string{secret}
	}
	for _, secret := range secrets {
		if err := signature.Check(secret); err != nil {
			return nil, err
		}
	}
	return secrets, nil
}
