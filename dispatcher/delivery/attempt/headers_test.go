package attempt

import (
	"maps"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// A log shows the headers of each attempt, without secrets.
func TestTheLogKeepsHeaders(t *testing.T) {
	t.Parallel()
	plain := http.Header{"User-Agent": {"spendhook/1"}, "Content-Type": {"application/json"}, "webhook-sequence": {"7"}, "webhook-previous": {"5"}, "Idempotency-Key": nil}
	secret := maps.Clone(plain)
	secret["X-Key"] = []string{"hush"}
	var log []Attempt
	for i, sent := range []http.Header{plain, plain, nil, nil, secret, secret} {
		log = Append(log, i+1, Result{Class: ClassHTTP5xx, StartedAt: time.UnixMilli(int64(1000 * i)), Sent: sent})
	}
	for i, want := range []string{"spendhook/1\n7 5", "spendhook/1\n7 5", "", "", "spendhook/1\n7 5\n\nX-Key", "spendhook/1\n7 5\n\nX-Key"} {
		if log[i].Sent != want {
			t.Errorf("attempt %d: kept %q, want %q", i, log[i].Sent, want)
		}
	}
	for i, n := range []int{7, 7, 0, 0, 8, 8} {
		shown := log[i].Headers("e")
		if len(shown) != n || n > 0 && shown["webhook-timestamp"] != string(rune('0'+i)) {
			t.Errorf("attempt %d: %v", i, shown)
		}
		if n > 0 && (shown["webhook-sequence"] != "7" || shown["webhook-previous"] != "5") {
			t.Errorf("attempt %d: %v", i, shown)
		}
		if shown["X-Key"] != "" && shown["X-Key"] != "[redacted]" {
			t.Errorf("attempt %d shows a secret", i)
		}
	}
}

// The log tells an attempt with an HTTP message signature from one with both signatures.
func TestTheLogKeepsHowAnAttemptWasSigned(t *testing.T) {
	t.Parallel()
	message := http.Header{"User-Agent": {"spendhook/1"}, "Content-Digest": {"d"}, "Signature-Input": {"i"}, "Signature": {"s"}}
	both := maps.Clone(message)
	both["webhook-signature"] = []string{"v1,x"}
	for _, c := range []struct {
		sent http.Header
		kept string
		n    int
	}{{message, "spendhook/1\n\n\nSignature only", 7}, {both, "spendhook/1\n\n\nSignature", 8}} {
		a := New(1, Result{Class: ClassHTTP5xx, Sent: c.sent})
		shown := a.Headers("e")
		_, standard := shown["webhook-signature"]
		if a.Sent != c.kept || len(shown) != c.n || standard != (c.n == 8) || shown["Signature"] != "[redacted]" || shown["Content-Digest"] != "[redacted]" {
			t.Errorf("kept %q, shown %v", a.Sent, shown)
		}
	}
}

// The log keeps the version of the URL and the reached address in at most 20 bytes.
func TestTheLogKeepsTheDestination(t *testing.T) {
	t.Parallel()
	for _, want := range []Result{
		{},
		{URLVersion: 7},
		{Address: netip.MustParseAddr("192.0.2.1")},
		{URLVersion: 65535, Address: netip.MustParseAddr("2001:db8::1")},
	} {
		a := New(1, want)
		version, address := a.Destination()
		if version != want.URLVersion || address != want.Address || len(a.To) > 20 {
			t.Errorf("%d, %v in %d bytes, want %+v", version, address, len(a.To), want)
		}
	}
	for _, damaged := range [][]byte{{0x80}, {1, 2, 3}} {
		if _, address := (&Attempt{To: damaged}).Destination(); address.IsValid() {
			t.Errorf("%v: %v", damaged, address)
		}
	}
}
