// Command plain receives deliveries with Go's standard library alone.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/receiver/receiver"
)

func main() {
	log.Fatal(receiver.Run(verify))
}

// verify checks a signature of Standard Webhooks 1.0.0: the HMAC-SHA256 of id, timestamp and body,
// with a dot between them. The key is the decoded secret.
func verify(secrets []string, header http.Header, body []byte) error {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return errors.New("webhook-timestamp is not a number")
	}
	if age := time.Since(time.Unix(seconds, 0)); age > 5*time.Minute || age < -5*time.Minute {
		return fmt.Errorf("the message is %v old", age)
	}
	for _, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			return errors.New("SPENDHOOK_SECRET is not whsec_ and base64")
		}
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
		want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for signature := range strings.FieldsSeq(header.Get("webhook-signature")) {
			if hmac.Equal([]byte(signature), []byte(want)) {
				return nil
			}
		}
	}
	return errors.New("no signature is valid")
}
