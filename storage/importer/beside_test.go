package importer_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/importer"
	"spendhook/storage/storagetest"
)

// endless repeats data until done is closed.
type endless struct {
	data []byte
	rest []byte
	done <-chan struct{}
}

func (e *endless) Read(p []byte) (int, error) {
	select {
	case <-e.done:
		return 0, errEnough
	default:
	}
	if len(e.rest) == 0 {
		e.rest = e.data
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

var errEnough = errors.New("enough")

// maxTurns is how many transactions of an import another write may wait for. It is more than one,
// since a busy machine may run the other writer too late for a pause.
const maxTurns = 10

// A second Store, which SQLite treats as another process, writes during an endless import. Its
// writes do not wait for long.
func TestWritesGoOnDuringAnImport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	daemon, importing := open(t, storage.Options{DataDir: dir}), open(t, storage.Options{DataDir: dir})
	storagetest.LoadCompanies(t, daemon.DB)
	var lines bytes.Buffer
	if err := importer.WriteDemoData(&lines, importer.DemoData{Companies: 1, Reimbursements: 1000}); err != nil {
		t.Fatal(err)
	}
	enough, ended := make(chan struct{}), make(chan error, 1)
	var turns atomic.Int64
	go func() {
		in := importer.Importer{DB: importing.DB, Progress: func(importer.Report) { turns.Add(1) }}
		_, err := in.Run(t.Context(), &endless{data: lines.Bytes(), done: enough})
		ended <- err
	}()
	most := int64(0)
	spread := time.NewTicker(37 * time.Millisecond) // over the import's transactions and pauses
	defer spread.Stop()
	made := int64(0)
	for ; turns.Load() < 20; made++ {
		<-spread.C
		before := turns.Load()
		storagetest.Must(daemon.CreateCard(t.Context(), acme, cards.Request{Type: "VIRTUAL", Alias: "Travel", UserUUID: ann}, cards.Once{}))(t)
		most = max(most, turns.Load()-before)
	}
	close(enough)
	if err := <-ended; !errors.Is(err, errEnough) {
		t.Errorf("the import ended with %v", err)
	}
	if _, total, err := daemon.Cards(t.Context(), cards.Filter{Company: &acme}); err != nil || total != made {
		t.Errorf("%d cards, %v, want %d", total, err, made)
	}
	if t.Logf("%d cards, waited for %d of %d turns", made, most, turns.Load()); most > maxTurns {
		t.Errorf("a card had to wait for %d turns", most)
	}
}
