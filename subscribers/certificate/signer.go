package certificate

import (
	"crypto"
	"io"
	"sync"

	"github.com/google/uuid"
)

// oneByOne signs when no other key of the company does: a signature by RSA takes milliseconds, and a receiver can ask
// a company for as many as it has attempts. Safe for concurrent use.
type oneByOne struct {
	crypto.Signer

	company uuid.UUID
}

// Sign implements crypto.Signer.
func (k *oneByOne) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	defer signing.begin(k.company)()
	return k.Signer.Sign(random, digest, opts)
}

// signing is shared by all certificates: a company has many, and each change of its subscribers reads them again.
var signing = turns{companies: map[uuid.UUID]*turn{}}

// turns lets each company sign once at a time. Safe for concurrent use.
type turns struct {
	mu        sync.Mutex
	companies map[uuid.UUID]*turn // that sign or wait
}

type turn struct {
	calls int // signing and waiting; turns.mu guards it
	mu    sync.Mutex
}

// begin waits until the company may sign. The caller calls end after the signature.
func (t *turns) begin(company uuid.UUID) (end func()) {
	t.mu.Lock()
	own := t.companies[company]
	if own == nil {
		own = &turn{}
		t.companies[company] = own
	}
	own.calls++
	t.mu.Unlock()
	own.mu.Lock()
	return func() {
		own.mu.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.calls--; own.calls == 0 {
			delete(t.companies, company)
		}
	}
}
