package signature

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"pgregory.net/rapid"

	"spendhook/internal/secret"
	"spendhook/subscribers"
)

// The example of the Standard Webhooks documents and of its libraries' tests.
const (
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTime      = 1614265330
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

	// The same message under ed25519; the key is given by its seed.
	vectorSeed = "6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc="
	vectorV1a  = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
)

func signerOf(tb testing.TB, asymmetric ed25519.PrivateKey, secrets ...string) *Signer {
	tb.Helper()
	list := make([]subscribers.SigningSecret, len(secrets))
	for i, s := range secrets {
		list[i].Key = secret.Text(s)
	}
	s, err := New(list, asymmetric)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func signedHeaders(id string, ts int64, value string) http.Header {
	h := http.Header{}
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, strconv.FormatInt(ts, 10))
	h.Set(HeaderSignature, value)
	return h
}

func TestThePublishedVectorReproduces(t *testing.T) {
	t.Parallel()
	got, err := V1(vectorSecret, vectorID, vectorTime, []byte(vectorBody))
	if err != nil || got != vectorSignature {
		t.Errorf("V1 = %q, %v, want %q", got, err, vectorSignature)
	}
	if got := signerOf(t, nil, vectorSecret).Sign(vectorID, vectorTime, []byte(vectorBody)); got != vectorSignature {
		t.Errorf("Signature = %q, want %q", got, vectorSignature)
	}
	headers := signedHeaders(vectorID, vectorTime, vectorSignature)
	if err := Verify(vectorSecret, headers, []byte(vectorBody), time.Minute, time.Unix(vectorTime, 0)); err != nil {
		t.Errorf("Verify: %v", err)
	}
}

func TestThePublishedAsymmetricVectorReproduces(t *testing.T) {
	t.Parallel()
	seed, err := base64.StdEncoding.DecodeString(vectorSeed)
	if err != nil {
		t.Fatal(err)
	}
	s := signerOf(t, ed25519.NewKeyFromSeed(seed), vectorSecret)
	if got, want := s.Sign(vectorID, vectorTime, []byte(vectorBody)), vectorSignature+" "+vectorV1a; got != want {
		t.Errorf("Signature = %q, want %q", got, want)
	}
}

func secretGen() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		key := rapid.SliceOfN(rapid.Byte(), 24, 64).Draw(t, "key")
		return secretPrefix + base64.StdEncoding.EncodeToString(key)
	})
}

// The pooled HMAC must be the library's, byte for byte.
func TestSignaturesEqualTheLibrarys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		secret := secretGen().Draw(rt, "secret")
		id := rapid.StringMatching(`[A-Za-z0-9_-]{1,128}`).Draw(rt, "id")
		ts := rapid.Int64Range(0, 1<<40).Draw(rt, "ts")
		body := rapid.SliceOf(rapid.Byte()).Draw(rt, "body")

		library, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			rt.Fatal(err)
		}
		want, err := library.Sign(id, time.Unix(ts, 0), body)
		if err != nil {
			rt.Fatal(err)
		}
		s := signerOf(t, nil, secret)
		for range 2 { // the second one from the pool
			if got := s.Sign(id, ts, body); got != want {
				rt.Fatalf("Signature = %q, want %q", got, want)
			}
		}
	})
}

func TestEveryLiveSecretSigns(t *testing.T) {
	t.Parallel()
	secrets := []string{secretPrefix + "dGhlIG5ld2VzdCBrZXk6IDI0IGJ5dGVz", secretPrefix + "dGhlIG1pZGRsZSBrZXk6IDI0IGJ5dGVz", secretPrefix + "dGhlIG9sZGVzdCBrZXk6IDI0IGJ5dGVz"}
	at := func(sec int64) *time.Time { at := time.Unix(sec, 0); return &at }
	s, err := New([]subscribers.SigningSecret{
		{Key: secret.Text(secrets[0]), ExpiresAt: at(1)}, // the newest signs all the same
		{Key: secret.Text(secrets[1]), ExpiresAt: at(2000)},
		{Key: secret.Text(secrets[2]), ExpiresAt: at(1000)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for ts, live := range map[int64]int{999: 3, 1000: 2, 1999: 2, 2000: 1} {
		var want []string
		for _, secret := range secrets[:live] {
			sig, _ := V1(secret, "evt_1", ts, []byte("{}"))
			want = append(want, sig)
		}
		if got := s.Sign("evt_1", ts, []byte("{}")); got != strings.Join(want, " ") {
			t.Errorf("at %d: %q, want %q", ts, got, want)
		}
	}
}

func TestTheLibraryAcceptsEveryLiveSecretBesideV1a(t *testing.T) {
	t.Parallel()
	_, private, _ := ed25519.GenerateKey(rand.Reader)
	secrets := []string{secretPrefix + "dGhlIG5ld2VzdCBrZXk6IDI0IGJ5dGVz", secretPrefix + "dGhlIG9sZGVzdCBrZXk6IDI0IGJ5dGVz"}
	now, body := time.Now(), []byte(`{"id":"evt_1"}`)
	headers := signedHeaders("evt_1", now.Unix(), signerOf(t, private, secrets...).Sign("evt_1", now.Unix(), body))
	for _, secret := range secrets {
		official, _ := standardwebhooks.NewWebhook(secret)
		if err := official.Verify(body, headers); err != nil {
			t.Errorf("standard-webhooks: %v", err)
		}
	}
}

func TestV1aVerifiesWithThePublicKey(t *testing.T) {
	t.Parallel()
	public, private, _ := ed25519.GenerateKey(rand.Reader)
	key := publicKeyPrefix + base64.StdEncoding.EncodeToString(public)
	body := bytes.Repeat([]byte("x"), 1000)
	sig := signerOf(t, private, vectorSecret).Sign("evt_1", 1000, body)
	verify := func(body string, id string) error {
		return Verify(key, signedHeaders(id, 1000, sig), []byte(body), time.Minute, time.Unix(1000, 0))
	}
	if err := verify(string(body), "evt_1"); err != nil {
		t.Errorf("Verify: %v", err)
	}
	if err := verify("y", "evt_1"); !errors.Is(err, standardwebhooks.ErrNoMatchingSignature) {
		t.Errorf("another body: %v", err)
	}
	if err := verify(string(body), "evt_2"); !errors.Is(err, standardwebhooks.ErrNoMatchingSignature) {
		t.Errorf("another id: %v", err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	signed := time.Unix(vectorTime, 0)
	good := signedHeaders(vectorID, vectorTime, vectorSignature)
	for name, test := range map[string]struct {
		secret  string
		headers http.Header
		body    string
		now     time.Time
		want    error
	}{
		"another body":    {vectorSecret, good, `{"test": 1}`, signed, standardwebhooks.ErrNoMatchingSignature},
		"another secret":  {secretPrefix + "YW5vdGhlciBrZXkgb2Y6IDI0IGJ5dGVz", good, vectorBody, signed, standardwebhooks.ErrNoMatchingSignature},
		"another id":      {vectorSecret, signedHeaders("msg_2", vectorTime, vectorSignature), vectorBody, signed, standardwebhooks.ErrNoMatchingSignature},
		"too old":         {vectorSecret, good, vectorBody, signed.Add(61 * time.Second), standardwebhooks.ErrMessageTooOld},
		"too new":         {vectorSecret, good, vectorBody, signed.Add(-61 * time.Second), standardwebhooks.ErrMessageTooNew},
		"no headers":      {vectorSecret, http.Header{}, vectorBody, signed, standardwebhooks.ErrRequiredHeaders},
		"public, none":    {publicKeyPrefix + base64.StdEncoding.EncodeToString(make([]byte, 32)), http.Header{}, vectorBody, signed, standardwebhooks.ErrRequiredHeaders},
		"public, v1 only": {publicKeyPrefix + base64.StdEncoding.EncodeToString(make([]byte, 32)), good, vectorBody, signed, standardwebhooks.ErrNoMatchingSignature},
	} {
		if err := Verify(test.secret, test.headers, []byte(test.body), time.Minute, test.now); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	edge := signed.Add(time.Minute)
	if err := Verify(vectorSecret, good, []byte(vectorBody), time.Minute, edge); err != nil {
		t.Errorf("at the edge of the tolerance: %v", err)
	}
}

func TestBadKeysAreRefusedWithoutRepeatingThem(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"whsec_not*base64", "whsec_", "", "\n", "whsec_QQ==", "whsec_b2Ygb25lIGJ5dGUgbGVzcyB0aGFu", "whpk_c2hvcnQ=", "whpk_not*base64"} {
		_, signErr := V1(secret, "evt_1", 1, nil)
		verifyErr := Verify(secret, signedHeaders("evt_1", 1, "v1,x"), nil, time.Minute, time.Unix(1, 0))
		for _, err := range []error{signErr, verifyErr} {
			if err == nil || strings.Contains(err.Error(), "not*base64") {
				t.Errorf("%q: %v, want an error that does not repeat it", secret, err)
			}
		}
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("a signer without secrets was made")
	}
	if _, err := New([]subscribers.SigningSecret{{Key: "whsec_*"}}, nil); err == nil {
		t.Error("a signer with a bad secret was made")
	}
}

func TestASignerIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	s := signerOf(t, nil, vectorSecret)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, 100*i)
			want, _ := V1(vectorSecret, "evt_1", int64(i), body)
			for range 200 {
				if got := s.Sign("evt_1", int64(i), body); got != want {
					t.Errorf("Signature = %q, want %q", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Verify must not panic on any input, and must not accept a message with a forged signature.
func FuzzVerify(f *testing.F) {
	public, _, _ := ed25519.GenerateKey(rand.Reader)
	f.Add(vectorID, "1614265330", "v1,AAAA", []byte(vectorBody))
	f.Add("", "-1", "v1a, v1 ,,  v1a,====", []byte{})
	keys := []string{secretPrefix + "YW5vdGhlciBrZXkgb2Y6IDI0IGJ5dGVz", publicKeyPrefix + base64.StdEncoding.EncodeToString(public)}
	f.Fuzz(func(t *testing.T, id, ts, sig string, body []byte) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {ts}, "Webhook-Signature": {sig}}
		for _, key := range keys {
			if Verify(key, h, body, time.Hour, time.Unix(vectorTime, 0)) == nil {
				t.Errorf("a forged message passed with %s", key)
			}
		}
	})
}

func BenchmarkSignature(b *testing.B) {
	for _, size := range []int{300, 16 << 10} {
		body := bytes.Repeat([]byte("x"), size)
		b.Run(fmt.Sprintf("signer/%d", size), func(b *testing.B) {
			s := signerOf(b, nil, vectorSecret)
			b.ReportAllocs()
			for b.Loop() {
				s.Sign(vectorID, vectorTime, body)
			}
		})
		b.Run(fmt.Sprintf("library/%d", size), func(b *testing.B) {
			wh, _ := standardwebhooks.NewWebhook(vectorSecret)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = wh.Sign(vectorID, time.Unix(vectorTime, 0), body)
			}
		})
	}
}
