// Package receiver stores each event that Spendhook delivers once.
package receiver

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// maxBody is larger than the body of any delivery.
const maxBody = 1 << 20

// Verify returns an error unless one of the secrets signed the body, at most 5 minutes ago.
type Verify func(secrets []string, header http.Header, body []byte) error

// Run receives deliveries until the process ends. Its settings are environment variables, which
// examples/README.md explains.
func Run(verify Verify) error {
	box := inbox(cmp.Or(os.Getenv("INBOX"), "inbox"))
	if err := os.MkdirAll(string(box), 0o700); err != nil {
		return err
	}
	secrets := strings.Fields(os.Getenv("SPENDHOOK_SECRET")) // two while a secret rotates
	if len(secrets) == 0 {
		return errors.New("SPENDHOOK_SECRET is not set")
	}
	for _, secret := range secrets { // with an empty secret anybody can sign
		if key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_")); err != nil || len(key) < 24 {
			return errors.New("SPENDHOOK_SECRET is not whsec_ and base64 of at least 24 bytes")
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "3000"))
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	if os.Getenv("SPENDHOOK_URL") != "" {
		go func() {
			if err := box.catchUp(); err != nil {
				log.Printf("catching up: %v", err)
			}
		}()
	}
	return http.Serve(listener, receive(box, secrets, verify))
}

// receive stores the event of a delivery, then answers. Process the event afterwards, from
// the inbox: Spendhook waits 15 s for an answer.
func receive(box inbox, secrets []string, verify Verify) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			handshake(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		if err := verify(secrets, r.Header, body); err != nil {
			http.Error(w, "the signature is not valid", http.StatusUnauthorized)
			return
		}
		if text := challenge(body); text != "" {
			_, _ = io.WriteString(w, text)
			return
		}
		if err := box.store(r.Header.Get("webhook-id"), body); err != nil {
			log.Print(err)
			http.Error(w, "try again later", http.StatusInternalServerError) // Spendhook retries
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// handshake answers the daemon that asks, in the format cloudevents, whether it may deliver. It is not signed, so nobody else
// gets consent.
func handshake(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	origin := os.Getenv("SPENDHOOK_ORIGIN")
	if origin == "" || !strings.EqualFold(r.Header.Get("WebHook-Request-Origin"), origin) {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("WebHook-Allowed-Origin", origin)
	w.Header().Set("WebHook-Allowed-Rate", "*")
}

// challenge returns the text that the answer to a challenge repeats; "" for any other message. Answer no challenge whose
// signature is not valid.
func challenge(body []byte) string {
	var message struct {
		Event    string
		Metadata struct{ Challenge string }
	}
	if json.Unmarshal(body, &message) != nil || message.Event != "SUBSCRIBER_CHALLENGE" {
		return ""
	}
	return message.Metadata.Challenge
}

// inbox is a folder with one file for each event.
type inbox string

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// store writes the file of an event unless the file exists: an event may be delivered more than
// once, always with the same id. The file is complete or does not exist.
func (b inbox) store(id string, body []byte) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid event id %q", id)
	}
	temporary, err := os.CreateTemp(string(b), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }() // the file of the event is another link to the content
	_, err = temporary.Write(body)
	if err = errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	err = os.Link(temporary.Name(), filepath.Join(string(b), id+".json"))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = b.sync()
	}
	if err == nil {
		fmt.Printf("received %s\n", id)
	}
	return err
}

// sync writes the folder to the disk, so that the name of a new file survives a power failure.
func (b inbox) sync() error {
	dir, err := os.Open(string(b))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// catchUp reads the missed events from the feed, after the last event that catchUp has read.
func (b inbox) catchUp() error {
	client, err := feedClient()
	if err != nil {
		return err
	}
	file := filepath.Join(string(b), ".after")
	last, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	after, _ := strconv.ParseInt(string(last), 10, 64)
	for more := true; more; {
		page, err := readFeed(client, after)
		if err != nil {
			return err
		}
		for _, e := range page.Content {
			if e.Body == nil { // it is gone
				continue
			}
			if err := b.store(e.ID, []byte(*e.Body)); err != nil {
				return err
			}
		}
		after, more = page.Next, page.More
		if err := os.WriteFile(file, []byte(strconv.FormatInt(after, 10)), 0o600); err != nil {
			return err
		}
	}
	fmt.Printf("caught up to %d\n", after)
	return nil
}

type page struct {
	Content []struct {
		ID   string
		Body *string
	}
	Next int64
	More bool
}

func readFeed(client *http.Client, after int64) (p page, err error) {
	url := fmt.Sprintf("%s/api/v1/subscribers/%s/feed?after=%d", os.Getenv("SPENDHOOK_URL"), os.Getenv("SPENDHOOK_SUBSCRIBER"), after)
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return p, err
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("SPENDHOOK_TOKEN"))
	resp, err := client.Do(req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return p, fmt.Errorf("the feed was answered with %s", resp.Status)
	}
	return p, json.NewDecoder(resp.Body).Decode(&p)
}
