package dispatcher

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/client"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/httpsig"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

// publishedKeys serves the keys of a company, as the API does, and counts the requests.
func (h *harness) publishedKeys(company uuid.UUID, reads *atomic.Int32) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads.Add(1)
		keys, err := h.service.SigningKeys(r.Context(), company)
		set := map[string][]httpsig.JWK{}
		for _, k := range keys {
			public, failed := httpsig.PublicJWK(k.Private.Public())
			if set["keys"] = append(set["keys"], public); failed != nil {
				err = failed
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(set)
	}))
	h.t.Cleanup(server.Close)
	return server.URL
}

var keyID = regexp.MustCompile(`keyid="[^"]+"`)

// rotateAfter rotates the keys of a company as if some time had passed: a new key must be published for a while before the next
// rotation.
func (h *harness) rotateAfter(passed time.Duration, company uuid.UUID) error {
	later := subscribers.NewStore(subscribers.StoreOptions{
		Client: h.client, Keyring: sealtest.Keyring(), Now: func() time.Time { return time.Now().Add(passed) },
	})
	_, err := later.RotateSigningKeys(h.t.Context(), company)
	return err
}

// revokeSigning revokes each key of a company that signs.
func (h *harness) revokeSigning(company uuid.UUID) error {
	keys, err := h.service.SigningKeys(h.t.Context(), company)
	for _, k := range keys {
		if k.State == subscribers.KeySigning && err == nil {
			err = h.service.RevokeSigningKey(h.t.Context(), company, k.ID)
		}
	}
	return err
}

// v1aSigner returns the id of the key that made a v1a signature of a message; "" if none of the keys did.
func v1aSigner(r *http.Request, body []byte, keys []subscribers.SigningKey) string {
	signed := append([]byte(r.Header.Get(signature.HeaderID)+"."+r.Header.Get(signature.HeaderTimestamp)+"."), body...)
	for one := range strings.FieldsSeq(r.Header.Get(signature.HeaderSignature)) {
		encoded, ok := strings.CutPrefix(one, "v1a,")
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil {
			continue
		}
		for _, k := range keys {
			if public, ok := k.Private.Public().(ed25519.PublicKey); ok && ed25519.Verify(public, signed, raw) {
				return k.ID
			}
		}
	}
	return ""
}

// cachingReceivers are the subscribers of a company. Their receivers know the keys that were published first.
type cachingReceivers struct {
	h       *harness
	company uuid.UUID
	keysURL string
	reads   atomic.Int32             // of keysURL
	cached  []subscribers.SigningKey // with which v1a is verified
	subs    []subscribers.Subscriber
	ids     []string // of the events

	holding atomic.Bool   // whether each receiver is to hold a message, once
	arrived chan struct{} // gets one for each message that is held
	changed chan struct{} // closed: none is held any more

	mu      sync.Mutex
	signers map[string]bool // what signed, for each kind of signature
}

// subscribe adds a subscriber whose receiver verifies each signature that it is to get.
func (c *cachingReceivers) subscribe(s subscribers.Settings) {
	c.h.t.Helper()
	var held atomic.Bool
	verifier := &client.MessageVerifier{KeysURL: c.keysURL}
	inbox := receive(c.h.t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := r.Header.Get(signature.HeaderID)
		if slices.Contains(*s.Signatures, subscribers.SignatureHTTPMessage) {
			err := verifier.Verify(r, body)
			c.check(err == nil, "http-message "+keyID.FindString(r.Header.Get(httpsig.HeaderInput)),
				fmt.Sprintf("%s: %v (forged: %t)", id, err, errors.Is(err, client.ErrInvalidMessage)))
		}
		if slices.Contains(*s.Signatures, subscribers.SignatureStandard) {
			by := v1aSigner(r, body, c.cached)
			c.check(by != "", "v1a "+by, id+": no v1a signature by a key that was cached")
		}
		if c.holding.Load() && held.CompareAndSwap(false, true) {
			c.arrived <- struct{}{}
			select {
			case <-c.changed:
			case <-r.Context().Done():
			}
		}
	})
	verifier.Origin = inbox.URL
	sub := c.h.subscribeTo(c.company, inbox.URL+"/hooks?a=%2F", "PAYMENT_PAID")
	c.h.update(sub, s)
	c.subs = append(c.subs, sub)
}

// check notes what signed, or fails the test. The message is taken even then, so that the test ends.
func (c *cachingReceivers) check(ok bool, signer, why string) {
	if !ok {
		c.h.t.Error(why)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signers[signer] = true
}

// delivered waits until all subscribers have the first n events.
func (c *cachingReceivers) delivered(n int) {
	c.h.t.Helper()
	for _, sub := range c.subs {
		c.h.reachAll(c.ids[:n], sub, delivery.StatusDelivered)
	}
}

// Receivers that read the published keys once accept every delivery, whatever becomes of the key that signs, and while it
// is changed. Another replica changes it.
func TestReceiversWithCachedKeysAcceptAllMessages(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(h *harness, company uuid.UUID) error{
		"rotation":   func(h *harness, company uuid.UUID) error { return h.rotateAfter(2*time.Hour, company) },
		"revocation": (*harness).revokeSigning,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ofTwoReplicas(t, func(t *testing.T, clients [2]redis.UniversalClient, companies ...uuid.UUID) {
				t.Helper()
				acceptWhile(t, change, clients, companies)
			})
		})
	}
}

func acceptWhile(t *testing.T, change func(*harness, uuid.UUID) error, clients [2]redis.UniversalClient, companies []uuid.UUID) {
	t.Helper()
	h := build(t, clients[0], func(o *Options) {
		o.Requests = requests.New(requests.Options{SignEd25519: true, Logger: o.Logger})
	})
	other := build(t, clients[1], nil)
	standard, message := subscribers.SignatureStandard, subscribers.SignatureHTTPMessage
	changed := make(chan struct{})
	var all []*cachingReceivers
	for _, company := range companies {
		c := &cachingReceivers{h: h, company: company, arrived: make(chan struct{}, 3), changed: changed, signers: map[string]bool{}}
		c.keysURL = h.publishedKeys(company, &c.reads)
		c.subscribe(subscribers.Settings{Signatures: &[]string{message, standard}})
		c.subscribe(subscribers.Settings{Signatures: &[]string{message}, SignatureAlgorithm: new(string(subscribers.ES256))})
		c.subscribe(subscribers.Settings{Signatures: &[]string{standard}})
		err := other.rotateAfter(time.Hour, company) // so that a retired key is published, too
		if err == nil {
			c.cached, err = h.service.SigningKeys(t.Context(), company)
		}
		if err != nil || len(c.cached) != 6 {
			t.Fatalf("%d keys, %v", len(c.cached), err)
		}
		all = append(all, c)
	}
	emit := func(n int) {
		for _, c := range all {
			c.ids = append(c.ids, h.emitOf(c.company, n)...)
		}
	}
	h.start()
	emit(10)
	for _, c := range all {
		c.delivered(10) // the receivers have the keys now
		c.holding.Store(true)
	}
	// From here on each receiver holds a message until the keys are changed, and gets others meanwhile.
	done := make(chan error, 1)
	go func() {
		defer close(changed)
		var failed []error
		for _, c := range all {
			for range c.subs {
				select {
				case <-c.arrived:
				case <-t.Context().Done():
					return
				}
			}
		}
		for _, c := range all {
			failed = append(failed, change(other, c.company))
		}
		done <- errors.Join(failed...)
	}()
	for range 20 {
		emit(5)
		if len(done) > 0 {
			break
		}
	}
	eventually(t, func() bool { return len(done) > 0 }, "each receiver holds a message, and the keys are changed")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	emit(10)
	for _, c := range all {
		c.delivered(len(c.ids))
		c.mu.Lock()
		// Two of http-message of each algorithm, and two of v1a: the former key and the one that replaced it.
		if n := c.reads.Load(); n != 2 || len(c.signers) != 6 {
			t.Errorf("the keys were read %d times by two receivers; what signed: %v", n, slices.Sorted(maps.Keys(c.signers)))
		}
		c.mu.Unlock()
	}
}
