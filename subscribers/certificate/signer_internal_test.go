package certificate

import (
	"crypto"
	"crypto/tls"
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/google/uuid"
)

// counting notices calls at the same time.
type counting struct {
	crypto.Signer
	running, most int
}

func (c *counting) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	c.running++
	c.most = max(c.most, c.running)
	runtime.Gosched()
	c.running--
	return nil, nil
}

// Another company's handshakes need a core too. A company has certificates of subscribers, which are often read again.
func TestACompanySignsOneHandshakeAtATime(t *testing.T) {
	t.Parallel()
	slow := &counting{}
	company := uuid.New()
	var all sync.WaitGroup
	for range 8 {
		c := &Certificate{TLS: &tls.Certificate{}}
		if err := c.setKey(company, slow); err != nil {
			t.Fatal(err)
		}
		key := c.TLS.PrivateKey.(crypto.Signer)
		all.Go(func() {
			for range 100 {
				_, _ = key.Sign(nil, nil, nil)
			}
		})
	}
	all.Wait()
	if slow.most != 1 {
		t.Errorf("%d signatures at the same time", slow.most)
	}
}

// waiting signs once it is released.
type waiting struct {
	crypto.Signer
	begun, released chan struct{}
}

func (w *waiting) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	close(w.begun)
	<-w.released
	return nil, nil
}

func TestACompanyDelaysNoOthersHandshake(t *testing.T) {
	t.Parallel()
	slow := &waiting{begun: make(chan struct{}), released: make(chan struct{})}
	one, other := &oneByOne{slow, uuid.New()}, &oneByOne{&counting{}, uuid.New()}
	var all sync.WaitGroup
	all.Go(func() { _, _ = one.Sign(nil, nil, nil) })
	<-slow.begun
	_, _ = other.Sign(nil, nil, nil)
	close(slow.released)
	all.Wait()
	signing.mu.Lock()
	defer signing.mu.Unlock()
	if signing.companies[one.company] != nil || signing.companies[other.company] != nil {
		t.Error("companies that do not sign are kept")
	}
}
