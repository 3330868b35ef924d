package certificate

import (
	"crypto"
	"io"
	"runtime"
	"sync"
	"testing"
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

// Another company's handshakes need a core too.
func TestACompanySignsOneHandshakeAtATime(t *testing.T) {
	t.Parallel()
	slow := &counting{}
	key := &oneByOne{Signer: slow}
	var all sync.WaitGroup
	for range 8 {
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
