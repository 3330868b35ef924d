package dispatcher

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/client"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/httpsig"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

// publishedKeys serves the keys of the harness's company, as the API does, and counts the requests.
func (h *harness) publishedKeys(reads *atomic.Int32) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads.Add(1)
		keys, err := h.service.SigningKeys(r.Context(), h.company)
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

// Receivers that read the published keys once accept every delivery, whatever becomes of the key that signs. Another replica
// changes it.
func TestReceiversWithCachedKeysAcceptAllMessages(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(h *harness) error{
		"rotation": func(h *harness) error {
			later := subscribers.NewStore(subscribers.StoreOptions{
				Client: h.client, Keyring: sealtest.Keyring(), Now: func() time.Time { return time.Now().Add(time.Hour) },
			})
			_, err := later.RotateSigningKeys(t.Context(), h.company)
			return err
		},
		"revocation": func(h *harness) error {
			keys, err := h.service.SigningKeys(t.Context(), h.company)
			for _, k := range keys {
				if k.State == subscribers.KeySigning && err == nil {
					err = h.service.RevokeSigningKey(t.Context(), h.company, k.ID)
				}
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ofTwoReplicas(t, func(t *testing.T, clients [2]redis.UniversalClient, companies ...uuid.UUID) {
				t.Helper()
				h, other := build(t, clients[0], nil), build(t, clients[1], nil)
				h.company, other.company = companies[0], companies[0]
				var reads atomic.Int32
				keysURL := h.publishedKeys(&reads)
				var mu sync.Mutex
				keyIDs := map[string]bool{}
				subscribe := func(s subscribers.Settings) subscribers.Subscriber {
					verifier := &client.MessageVerifier{KeysURL: keysURL}
					inbox := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
						body, _ := io.ReadAll(r.Body)
						if err := verifier.Verify(r, body); err != nil {
							t.Errorf("%s: %v (forged: %t)", r.Header.Get(signature.HeaderID), err, errors.Is(err, client.ErrInvalidMessage))
							w.WriteHeader(http.StatusUnauthorized)
						}
						mu.Lock()
						defer mu.Unlock()
						keyIDs[keyID.FindString(r.Header.Get(httpsig.HeaderInput))] = true
					})
					verifier.Origin = inbox.URL
					sub := h.subscribe(inbox.URL + "/hooks?a=%2F")
					h.update(sub, s)
					return sub
				}
				both := subscribe(subscribers.Settings{Signatures: &[]string{subscribers.SignatureHTTPMessage, subscribers.SignatureStandard}})
				alone := subscribe(subscribers.Settings{
					Signatures: &[]string{subscribers.SignatureHTTPMessage}, SignatureAlgorithm: new(string(subscribers.ES256)),
				})
				h.start()
				var ids []string
				for i := range 6 {
					ids = append(ids, h.emit(20)...)
					if i == 2 {
						h.reachAll(ids[:1], both, delivery.StatusDelivered)
						h.reachAll(ids[:1], alone, delivery.StatusDelivered)
						if err := change(other); err != nil {
							t.Fatal(err)
						}
					}
				}
				h.reachAll(ids, both, delivery.StatusDelivered)
				h.reachAll(ids, alone, delivery.StatusDelivered)
				if n := reads.Load(); n != 2 || len(keyIDs) != 4 {
					t.Errorf("the keys were read %d times by two receivers, %d keys signed", n, len(keyIDs))
				}
			})
		})
	}
}
