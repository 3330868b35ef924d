// Command standardwebhooks receives deliveries and verifies them with the library of
// Standard Webhooks.
package main

import (
	"errors"
	"log"
	"net/http"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"example.com/receiver/receiver"
)

func main() {
	log.Fatal(receiver.Run(verify))
}

func verify(secrets []string, header http.Header, body []byte) error {
	for _, secret := range secrets {
		webhook, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return err
		}
		if webhook.Verify(body, header) == nil {
			return nil
		}
	}
	return errors.New("no signature is valid")
}
